"""Run a validation, a test or a teacher on the first samples of its data, and leave no trace.

The loop, data set and evaluator are built anew from the config, so that those of the run are not
touched; only the model is the run's.
"""

from __future__ import annotations

import contextlib
import copy
import io
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.visualization import Visualizer
from torch import nn
from torch.utils.data import DataLoader, Subset

from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import nodes, type_name
from mmpola.openmmlab.results.show import ShowHook
from mmpola.openmmlab.run.seeding import unchanged_generators


class Trial:
    """A loop of the config over the first samples of its data.

    Hooks are not called, except those that draw with a visualizer: copies of them draw into
    `folder`, or nowhere.

    Args:
        runner: MMEngine's, of a config.
        split: 'val' or 'test'.
        samples: number of samples, of each data set if several are concatenated.
        folder: for files that evaluators and hooks write.

    Attributes:
        metrics: what the evaluator returned, by name.
    """

    def __init__(self, runner: Any, split: str, samples: int, folder: Path) -> None:
        self.split = split
        self.metrics: dict[str, Any] = {}
        self.runner = copy.copy(runner)
        visualizer = new_visualizer(runner)
        self.runner.visualizer = visualizer
        self.drawing = drawing_hooks(runner, visualizer, folder)
        self.showing = [
            hook.without_files(visualizer) for hook in runner.hooks if isinstance(hook, ShowHook)
        ]
        self.runner.call_hook = self._call_hook
        evaluator = writing_to(folder, runner.cfg[f'{split}_evaluator'])
        setattr(self.runner, f'_{split}_evaluator', evaluator)
        build: Callable[[Any], Any] = getattr(self.runner, f'build_{split}_loop')
        self.loop = build(runner.cfg[f'{split}_cfg'])
        setattr(self.runner, f'_{split}_loop', self.loop)
        use_first_samples(self.loop, samples)

    def run(self) -> None:
        """Run the loop and set `metrics`; fail if no image can be drawn."""
        self.loop.run()
        for hook in self.showing:
            hook.check_drawn()

    def _call_hook(self, name: str, **arguments: Any) -> None:
        """Take the place of the runner's `call_hook`."""
        if name == f'after_{self.split}_epoch':
            self.metrics = dict(arguments['metrics'] or {})
        if name == f'after_{self.split}_iter':
            for hook in (*self.drawing, *self.showing):
                getattr(hook, name)(self.runner, **arguments)

    def place_of(self, error: Exception) -> tuple[str, str]:
        """Return (config key, 'Class.method') of the part of the loop that an error comes from."""
        owners = {id(self.loop): f'{self.split}_cfg', **self._known_parts()}
        found = (f'{self.split}_cfg', type(self.loop).__name__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            owner = frame.f_locals.get('self')
            if id(owner) in owners:  # the innermost one is the last
                method = f'{type(owner).__name__}.{frame.f_code.co_name}'
                found = (owners[id(owner)], method)
        return found

    def _known_parts(self) -> dict[int, str]:
        """Return the config key of each part by its id."""
        known = {}
        dataset = self.loop.dataloader.dataset.dataset
        for part in (dataset, *getattr(dataset, 'datasets', ())):
            known[id(part)] = f'{self.split}_dataloader.dataset'
        for name, module in unwrapped(self.runner.model).named_modules():
            known[id(module)] = f'model.{name}'.removesuffix('.')
        for part in (self.loop.evaluator, *metrics_of(self.loop)):
            known[id(part)] = f'{self.split}_evaluator'
        for hook in (*self.drawing, *[hook.drawing for hook in self.showing]):
            known[id(hook)] = key_of_hook(self.runner.cfg, type(hook).__name__)
        return known


def teacher_of(model: nn.Module) -> Any:
    """Return what a student learns from, which has a method `check`; None without a teacher."""
    distillation = getattr(unwrapped(model), 'distillation', None)
    return distillation if hasattr(distillation, 'check') else None


def check_teacher(runner: Any, samples: int) -> None:
    """Let the teacher see a batch as in training, of the first samples, which are repeated.

    Raises:
        Exception: of any type, if it cannot be built or run; see also `Distillation.check`.
    """
    model = unwrapped(runner.model)
    loader = runner.train_loop.dataloader
    dataset = getattr(loader.dataset, 'inner', loader.dataset)  # without `SampleKey`s
    number = runner.cfg.train_dataloader.batch_size
    first = [dataset[index] for index in range(min(samples, number, len(dataset)))]
    batch = loader.collate_fn([first[index % len(first)] for index in range(number)])
    inputs = model.data_preprocessor(batch, training=True)['inputs']
    teacher_of(model).check(inputs, model.num_classes)


def metrics_of(loop: Any) -> list[Any]:
    """Return the metrics in the evaluator of a loop."""
    return list(getattr(loop.evaluator, 'metrics', ()))


def key_of_hook(cfg: Config, name: str) -> str:
    """Return the config key of the first hook of a class, else the name of the class."""
    for part in ('default_hooks', 'custom_hooks'):
        for key, node in nodes(cfg.get(part), part):
            if type_name(node.get('type')) == name:
                return key
    return name


def new_visualizer(runner: Any) -> Visualizer:
    """Build a visualizer like that of a runner that writes nothing."""
    settings = dict(runner.cfg.get('visualizer') or {})
    for key in ('type', '_scope_', 'save_dir'):
        settings.pop(key, None)
    settings.update(name='trial', vis_backends=None)
    return type(runner.visualizer)(**settings)  # not registered as MMEngine's current one


def drawing_hooks(runner: Any, visualizer: Visualizer, folder: Path) -> list[Any]:
    """Return copies of mmdet's and mmseg's hooks; if they draw, they draw every image."""
    copies = []
    for hook in runner.hooks:
        if isinstance(getattr(hook, '_visualizer', None), Visualizer):
            drawing = copy.copy(hook)
            drawing._visualizer = visualizer
            drawing.interval = 1
            drawing.show = False
            if getattr(drawing, 'test_out_dir', None):
                drawing.test_out_dir = str(folder)
            copies.append(drawing)
    return copies


def writing_to(folder: Path, evaluator: Any) -> Any:
    """Return the config of an evaluator, with a folder for its files instead of the user's.

    CocoPanopticMetric asks for all images if its files are kept, so it keeps none.
    """
    evaluator = copy.deepcopy(evaluator)
    for _, node in nodes(evaluator, ''):
        for key, path in node.items():
            if key == 'outfile_prefix' and not node.get('format_only'):
                node[key] = None
            elif key.startswith('out') and isinstance(path, str):
                node[key] = str(folder / Path(path).name)
    return evaluator


def use_first_samples(loop: Any, samples: int) -> None:
    """Let a loop of MMEngine run, and evaluate, the first samples of its data only."""
    loader = loop.dataloader
    ends = getattr(loader.dataset, 'cumulative_sizes', None) or [len(loader.dataset)]
    parts = [range(start, end)[:samples] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    indices = [index for part in parts for index in part]
    loop.dataloader = DataLoader(
        Subset(loader.dataset, indices),
        batch_size=min(samples, loader.batch_size or 1),
        collate_fn=loader.collate_fn,
    )
    meta = copy.deepcopy(loop.evaluator.dataset_meta)
    for part in meta if isinstance(meta, (list, tuple)) else [meta]:
        if part is not None and 'cumulative_sizes' in part:  # read by MultiDatasetsEvaluator
            part['cumulative_sizes'] = list(accumulate(len(indices) for indices in parts))
    loop.evaluator.dataset_meta = meta
    for metric in metrics_of(loop):
        if getattr(metric, 'img_ids', 0) is None:
            evaluate_given_images(metric)


def evaluate_given_images(metric: Any) -> None:
    """Let mmdet's CocoMetric evaluate the images it gets, instead of all that its file names."""
    compute = metric.compute_metrics

    def compute_metrics(results: list[Any]) -> Any:
        metric.img_ids = [prediction['img_id'] for _, prediction in results]
        return compute(results)

    metric.compute_metrics = compute_metrics


@contextlib.contextmanager
def every_score_counts(model: nn.Module) -> Iterator[None]:
    """Let detectors return their best boxes, however low their scores."""
    thresholds = []
    for module in model.modules():
        for _, node in nodes(getattr(module, 'test_cfg', None), ''):
            if node.get('score_thr'):
                thresholds.append((node, node['score_thr']))
                node['score_thr'] = 0.0
    try:
        yield
    finally:
        for node, threshold in thresholds:
            node['score_thr'] = threshold


@contextlib.contextmanager
def without_traces(runner: Any) -> Iterator[None]:
    """Restore what a forward pass and an evaluation can change in a run; nothing is logged.

    The model runs without torch.compile: it would compile other sizes first than it does in
    training.
    """
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
        if devices:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # MMEngine logs the peak
