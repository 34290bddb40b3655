"""A validation of two images before the first step: a late error comes early, in one line."""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import Hook
from torch.utils.data import DataLoader, Subset

from mmpola.messages import first_line, info, listed
from mmpola.openmmlab.checks.table import BUILT, ERROR, Built, check
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import nodes
from mmpola.openmmlab.run.seeding import unchanged_generators
from mmpola.openmmlab.screen.screen import awaited_metrics

IMAGES = 2
"""Number of images that are tried, of each data set."""


class NotedMetrics(Hook):
    """Takes the place of a run's hooks, and notes what the evaluator returns."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def after_val_epoch(self, runner: Any, metrics: dict[str, Any] | None = None) -> None:
        """Note the metrics."""
        self.metrics = metrics or {}


@check('trial', ERROR, BUILT)
def trial(built: Built) -> Iterator[str]:
    """The model or an evaluator fails for the first two images."""
    runner = built.runner
    loader = f'{built.split}_dataloader'
    if built.loop is None:
        return
    began = time.perf_counter()
    try:
        with without_traces(runner, built.loop):
            built.metrics = run_first_images(runner, built.loop)
    except Exception as error:  # models and metrics raise exceptions of any type
        runner.logger.info(traceback.format_exc())
        yield (
            f'{_key_of(error, built)}: expected no error for {IMAGES} images of {loader}, got '
            f'{first_line(error)}; the traceback is in the log file'
        )
        return
    what = f'{loader} through model and {built.split}_evaluator'
    info(f'trial        {IMAGES} images of {what}: {time.perf_counter() - began:.1f} s')


@check('metric-names', ERROR, BUILT)
def metric_names(built: Built) -> Iterator[str]:
    """A hook or schedule waits for a metric that validation does not have."""
    if built.split != 'val' or not built.metrics:
        return
    names = list(built.metrics)
    for setting, name in awaited_metrics(built.runner):
        if name not in (*names, 'auto'):
            key = _key_of_value(built.runner.cfg, setting, name)
            ends = [metric for metric in names if metric.endswith(f'/{name}')]
            (nearest, *_) = ends or get_close_matches(name, names, n=1, cutoff=0)
            yield (
                f'{key}: expected a metric of val_evaluator ({listed(names)}), got {name}; did '
                f'you mean {nearest}?'
            )


def _key_of_value(cfg: Any, word: str, value: str) -> str:
    """Return the key of the config that ends with a word and has a value, or holds it in a list."""
    for part in ('default_hooks', 'custom_hooks', 'param_scheduler'):
        for key, node in nodes(cfg.get(part), part):
            found = node.get(word)
            if found == value or (isinstance(found, (list, tuple)) and value in found):
                return f'{key}.{word}'
    return word


def _key_of(error: Exception, built: Built) -> str:
    """Return the config key of the innermost part of a loop that an error comes from."""
    keys = {
        id(built.loop.dataloader.dataset): f'{built.split}_dataloader.dataset',
        id(unwrapped(built.runner.model)): 'model',
        id(built.loop.evaluator): f'{built.split}_evaluator',
    }
    key = f'{built.split}_cfg'
    for frame, _ in traceback.walk_tb(error.__traceback__):
        key = keys.get(id(frame.f_locals.get('self')), key)
    return key


def run_first_images(runner: Any, loop: Any) -> dict[str, Any]:
    """Run a validation or test on the first samples of its data; return the metrics.

    No hook of the run is called. Detectors return their best boxes, however low their scores: an
    evaluator may return no metric for an image without any. The caller restores the loop.
    """
    loader = loop.dataloader
    dataset = loader.dataset
    ends = getattr(dataset, 'cumulative_sizes', None) or [len(dataset)]
    parts = [range(start, end)[:IMAGES] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    indices = [index for part in parts for index in part]
    subset = Subset(dataset, indices)
    loop.dataloader = DataLoader(
        subset,
        batch_size=min(IMAGES, loader.batch_size or 1),
        sampler=DefaultSampler(subset, shuffle=False, seed=0),
        collate_fn=loader.collate_fn,
    )
    meta = copy.deepcopy(loop.evaluator.dataset_meta)
    for part in meta if isinstance(meta, (list, tuple)) else [meta]:
        if part is not None and 'cumulative_sizes' in part:  # read by MultiDatasetsEvaluator
            part['cumulative_sizes'] = list(accumulate(len(indices) for indices in parts))
    loop.evaluator.dataset_meta = meta
    noted = NotedMetrics()
    runner._hooks = [noted]
    thresholds = []
    for module in runner.model.modules():
        for _, node in nodes(getattr(module, 'test_cfg', None), ''):
            if node.get('score_thr'):
                thresholds.append((node, node['score_thr']))
                node['score_thr'] = 0.0
    try:
        with tempfile.TemporaryDirectory(prefix='mmpola_') as folder:
            for metric in metrics_of(loop):
                write_to(folder, metric)
                if getattr(metric, 'img_ids', 0) is None:  # mmdet's CocoMetric takes all of a file
                    metric.img_ids = [dataset.get_data_info(index)['img_id'] for index in indices]
            loop.run()
    finally:
        for node, threshold in thresholds:
            node['score_thr'] = threshold
    return noted.metrics


def metrics_of(loop: Any) -> list[Any]:
    """Return the metrics in the evaluator of a loop."""
    return list(getattr(loop.evaluator, 'metrics', ()))


def write_to(folder: str, metric: Any) -> None:
    """Let a metric write its files into a folder instead of the user's.

    CocoPanopticMetric asks for all images where it keeps files, unless it has a temporary folder.
    """
    for name, path in list(vars(metric).items()):
        if name.startswith(('out', 'seg_out')) and isinstance(path, str):
            target = Path(folder, Path(path).name)
            if name.endswith('_dir'):
                target.mkdir(exist_ok=True)
            setattr(metric, name, str(target))
        elif name == 'tmp_dir' and path is None and not metric.format_only:
            metric.tmp_dir = folder


@contextlib.contextmanager
def without_traces(runner: Any, loop: Any) -> Iterator[None]:
    """Restore what a validation of some images changes in a run; nothing is logged.

    The model runs without torch.compile: it would compile other sizes first than it does in
    training.
    """
    objects = [runner, loop, loop.evaluator, *metrics_of(loop)]
    attributes = [(vars(part), dict(vars(part))) for part in objects]
    modes = [(module, module.training) for module in runner.model.modules()]
    buffers = [(module._buffers, dict(module._buffers)) for module, _ in modes]
    values = [{n: x.clone() for n, x in held.items() if x is not None} for _, held in buffers]
    hub = runner.message_hub
    scalars = copy.deepcopy(hub._log_scalars)
    information = hub._runtime_info.copy()
    resumed = hub._resumed_keys.copy()
    was_disabled = runner.logger.disabled
    devices = []
    if torch.cuda.is_available():
        devices = [torch.cuda.current_device()]
    runner.logger.disabled = True
    try:
        with (
            unchanged_generators(),
            torch.random.fork_rng(devices),
            torch.compiler.set_stance('force_eager'),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter('ignore')
            yield
    finally:
        runner.logger.disabled = was_disabled
        hub._log_scalars = scalars
        hub._runtime_info = information
        hub._resumed_keys = resumed
        for module, mode in modes:
            module.training = mode
        for (current, held), copies in zip(buffers, values, strict=True):
            current.clear()
            current.update(held)
            for name, value in copies.items():
                held[name].copy_(value)
        for current, held in attributes:
            current.clear()
            current.update(held)
        if devices:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # MMEngine logs the peak
