"""Checkpoints for the model of a config: what they hold, whether they fit it, and which one a training resumes from.

MMEngine only warns about tensors that are missing, unknown or of another shape, and continues with a partly loaded
model. It looks for weights under `state_dict` only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import Tensor, nn

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import SCHEMES, resolve_checkpoint
from mmpola.checkpoint.load import Loadable, LoadReport, find_weights, fit_weights
from mmpola.checkpoint.safe_load import LOG_HISTORY, read_checkpoint, stubs_in
from mmpola.config_tree import nodes, predicted_classes
from mmpola.messages import UsageError, listed

TIME_STAMP = re.compile(r'_\d{8}_\d{6}$')
"""MMEngine appends it to a config's name to name a training run."""

AVERAGED = 'averaged (EMA) weights are used, not the raw weights of the last step'

BACKBONE = 'backbone.'

STATE = ('meta', 'message_hub', 'optimizer')
"""Entries that a checkpoint needs, in addition to its weights, so that training can be resumed from it."""


@dataclass
class TrainingCheckpoint:
    """A checkpoint that has been read.

    Attributes:
        path: of the local file.
        content: as MMEngine will get it, with the weights under `state_dict`.
        weights: the tensors that will be loaded into the model.
        container: key under which the file holds them.
    """

    path: str
    content: Mapping[str, Any]
    weights: dict[str, Tensor]
    container: str = 'state_dict'

    @property
    def averaged(self) -> bool:
        """Whether `weights` are EMA weights: MMEngine's EMAHook swaps them with the raw ones when it saves."""
        return self.container.endswith('ema') or 'ema_state_dict' in self.content

    @property
    def meta(self) -> Mapping[str, Any]:
        """The entry `meta` of the file; empty for a bare state dict."""
        meta = self.content.get('meta')
        return meta if isinstance(meta, Mapping) else {}

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes that it was trained on, in the order of their labels; empty if the file does not say."""
        dataset = self.meta.get('dataset_meta')
        classes = dataset.get('classes') if isinstance(dataset, Mapping) else None
        return classes if isinstance(classes, (list, tuple)) else ()

    @property
    def config_name(self) -> str | None:
        """Name of the config that it was trained with, None if the file does not say."""
        name = self.meta.get('experiment_name')
        return TIME_STAMP.sub('', name) if isinstance(name, str) else None


def locate(name: str | Path) -> Path:
    """Return the local file of a checkpoint named by a path, a URL or a model, see `resolve_checkpoint`.

    Raises:
        UsageError: there is no such file, or it cannot be downloaded.
    """
    try:
        return resolve_checkpoint(name)
    except FileNotFoundError:
        raise UsageError(f'{name}: no such checkpoint') from None
    except CheckpointError as error:
        raise UsageError(str(error)) from None


def read(name: str | Path) -> TrainingCheckpoint:
    """Read any file of weights that `find_weights` knows.

    Raises:
        UsageError: the file does not exist, cannot be read, or has no weights.
    """
    path = locate(name)
    try:
        content = read_checkpoint(path)
        container, weights = find_weights(content, path)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    if container != 'state_dict':
        content = {'state_dict': weights}
    return TrainingCheckpoint(str(path), content, weights, container)


def read_fitting(name: str | Path, cfg: Config, model: nn.Module) -> TrainingCheckpoint:
    """Read the weights of a config's whole model, and print which of a file's weights are used, if there is a choice.

    A classifier's are fitted to it as by `init_cfg`: any names, with tables resized. Those of other models must be its
    state dict.

    Args:
        name: of the file, see `locate`.
        cfg: the config.
        model: what `validate_config` returned for it.

    Raises:
        UsageError: see `read` and `check_fits`.
    """
    checkpoint = read(name)
    if isinstance(model, Loadable):
        checkpoint.weights = model.rename_weights(checkpoint.weights)
    checkpoint.weights, report = check_fits(checkpoint, cfg, model, exact=False)
    if isinstance(model, Loadable):
        checkpoint.content = {**checkpoint.content, 'state_dict': checkpoint.weights}
        if report.dropped or report.resized:
            report.container = checkpoint.container
            print(report)
    if checkpoint.averaged:
        print(f'{name}: {AVERAGED}')
    return checkpoint


def check_fits(
    checkpoint: TrainingCheckpoint, cfg: Config, model: nn.Module, exact: bool = True
) -> tuple[dict[str, Tensor], LoadReport]:
    """Compare a checkpoint with the config's model, and return what `fit_weights` returns; see there for `exact`.

    Raises:
        UsageError: the model predicts another number of classes, or tensors are missing, unknown, of another shape or
            not finite; the message names the first of each.
    """
    for key, count in predicted_classes(cfg.model):
        if checkpoint.classes and count != len(checkpoint.classes):
            raise UsageError(
                f'{key}: expected {len(checkpoint.classes)}, the number of classes in {checkpoint.path} '
                f'({listed(checkpoint.classes)}), got {count}'
            )
    weights, report = fit_weights(model, checkpoint.weights, checkpoint.path, exact=exact)
    if not report.problems:
        return weights, report
    others = dict.fromkeys(key.split('.')[0] for key in model.state_dict() if not key.startswith(BACKBONE))
    if hasattr(model, 'backbone') and not any(key.split('.')[0] in others for key in checkpoint.weights):
        raise UsageError(
            f'{checkpoint.path}: expected the weights of a whole {report.model}, got none of its {listed(others)}; '
            "training starts from weights of a backbone alone by model.backbone.init_cfg=dict(type='Pretrained', "
            'checkpoint=…)'
        )
    origin = f'; it was trained with {checkpoint.config_name}' if checkpoint.config_name else ''
    listing = '\n  '.join(report.problems)
    raise UsageError(f'{checkpoint.path}: does not fit the {report.model} of {cfg.filename}{origin}\n  {listing}')


def check_start(checkpoint: TrainingCheckpoint, cfg: Config, model: nn.Module) -> str:
    """Compare a checkpoint with the model that starts from its weights (`load_from`): heads may differ, backbones not.

    Returns:
        One line: how many tensors are loaded, and which parts of the model stay as initialised.

    Raises:
        UsageError: no tensor of the backbone fits.
    """
    fitting = fit_weights(model, checkpoint.weights, checkpoint.path, exact=True)[1].loaded
    if not any(key.startswith(BACKBONE) for key in fitting):
        raise UsageError(
            f'load_from: {checkpoint.path}: expected weights for the backbone of {cfg.filename}, got '
            f'{len(checkpoint.weights)} tensors of which none fits it: {listed(checkpoint.weights, 3)}; weights of a '
            "backbone alone are loaded by model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
        )
    names = model.state_dict().keys()
    new = dict.fromkeys('.'.join(key.split('.')[:2]) for key in names if key not in fitting)
    parts = f'; as initialised: {listed(new)}' if new else ''
    return f'load_from: {checkpoint.path}: {len(fitting)} of {len(names)} tensors are loaded{parts}'


def check_pretrained(cfg: Config) -> None:
    """Check that the pretrained weights of the config exist, downloading them if they are named by a URL or a model.

    Called before the model is built. Names of MMEngine's own schemes, such as `torchvision://`, are left to MMEngine.

    Raises:
        UsageError: a file is missing or cannot be downloaded; the message names its key and says how to train without
            it.
    """
    for key, node in nodes(cfg.model, 'model'):
        start = node.get('init_cfg')
        if not isinstance(start, dict) or start.get('type') != 'Pretrained':
            continue
        name = str(start['checkpoint'])
        if '://' in name and not name.startswith(tuple(f'{scheme}://' for scheme in SCHEMES)):
            continue
        try:
            resolve_checkpoint(name)
        except (CheckpointError, FileNotFoundError) as error:
            raise UsageError(
                f'{error} ({key}.init_cfg.checkpoint); train without it with --cfg-options {key}.init_cfg=None'
            ) from None


def remove_pretrained(model: Any) -> None:
    """Set every init_cfg that names a file to None inside a model's config: a training checkpoint has all weights."""
    for _, node in nodes(model, 'model'):
        start = node.get('init_cfg')
        if any(entry.get('type') == 'Pretrained' for entry in (start if isinstance(start, list) else [start or {}])):
            node['init_cfg'] = None


def decide_resume(cfg: Config, overwrite: bool, model: nn.Module) -> TrainingCheckpoint | None:
    """Decide what a training run resumes from, and check that it may use its work dir.

    With `cfg.resume`, that is the checkpoint `cfg.load_from` if it is set, else the newest one in the work dir. If
    there is no checkpoint, training starts from the first step, as in MMEngine.

    Args:
        cfg: config of the run; its `load_from` is set to the path.
        overwrite: allow the run to overwrite checkpoints.
        model: what `validate_config` returned for the config.

    Raises:
        UsageError: the work dir holds checkpoints of another config, or checkpoints that would be overwritten; or the
            checkpoint to resume from is missing, is not a training checkpoint, was written by another config, or does
            not fit the model.
    """
    path = None
    if cfg.get('resume'):
        path = locate(cfg.load_from) if cfg.get('load_from') else newest_checkpoint(cfg.work_dir)
    _check_work_dir(cfg, path, overwrite)
    if path is None:
        return None
    try:
        checkpoint = read(path)
    except UsageError as error:
        older = _newest_intact(cfg.work_dir)
        raise UsageError(f'{error}; the newest intact one: --resume {older}' if older else str(error)) from None
    _check_state(checkpoint)
    check_fits(checkpoint, cfg, model)
    own = cfg.get('experiment_name') or Path(cfg.filename).stem
    if checkpoint.config_name not in (None, own):
        raise UsageError(
            f'--resume: {path}: expected a checkpoint of {own}, got one of {checkpoint.config_name}; '
            f'start a new run from its weights with --cfg-options load_from={path}'
        )
    cfg.load_from = checkpoint.path
    return checkpoint


def finished(checkpoint: TrainingCheckpoint, cfg: Config) -> str | None:
    """Return the progress, such as '12 of 12 epochs', of a checkpoint at or beyond the config's end; None before it."""
    epochs, steps = cfg.train_cfg.get('max_epochs'), cfg.train_cfg.get('max_iters')
    key, end, unit = ('epoch', epochs, 'epochs') if epochs else ('iter', steps, 'steps')
    done = checkpoint.meta.get(key)
    return None if done is None or end is None or done < end else f'{done} of {end} {unit}'


def newest_checkpoint(work_dir: str | Path) -> Path | None:
    """Return the checkpoint that MMEngine recorded in `last_checkpoint`, None if there is no such record.

    Raises:
        UsageError: neither the recorded file nor a file of its name in the work dir (which may have been moved) exists.
    """
    record = Path(work_dir) / 'last_checkpoint'
    if not record.is_file():
        return None
    recorded = Path(os.fsdecode(record.read_bytes()).strip())
    for path in (record.parent / recorded.name, recorded):
        if os.path.isfile(path):  # unlike Path.is_file, it accepts any name
            return path
    raise UsageError(
        f'{record}: names {recorded}, which does not exist; correct the line, or remove the file and name '
        'the checkpoint to resume from: --resume CHECKPOINT'
    )


def _checkpoints(work_dir: str | Path) -> list[Path]:
    """Return the checkpoints in a work dir, the newest last."""
    return sorted(Path(work_dir).glob('*.pth'), key=lambda path: path.stat().st_mtime)


def _newest_intact(work_dir: str | Path) -> Path | None:
    """Return the newest checkpoint in a work dir that can be read and resumed from, None if there is none."""
    return next((path for path in reversed(_checkpoints(work_dir)) if _is_intact(path)), None)


def _is_intact(path: Path) -> bool:
    try:
        _check_state(read(path))
    except UsageError:
        return False
    return True


def _check_work_dir(cfg: Config, path: Path | None, overwrite: bool) -> None:
    """Raise UsageError if the work dir holds checkpoints that a run resumed from `path` may not overwrite."""
    work_dir = Path(cfg.work_dir)
    checkpoints = _checkpoints(work_dir)
    if not checkpoints:
        return
    own = Path(cfg.filename).name
    others = sorted(path.name for path in work_dir.glob('*.py'))
    if others and own not in others:
        raise UsageError(
            f'{work_dir}: holds checkpoints of {listed(others)}, not of {own}; '
            'use another --work-dir, or resume the earlier run with its own config'
        )
    if overwrite:
        return
    names = listed(path.name for path in reversed(checkpoints))
    if path is not None:
        newest = newest_checkpoint(work_dir) or checkpoints[-1]
        if path.resolve() == newest.resolve():
            return
        if not _is_intact(newest) and (older := _newest_intact(work_dir)) and path.resolve() == older.resolve():
            return
    elif cfg.get('resume'):
        raise UsageError(
            f'{work_dir}: holds checkpoints ({names}) but no last_checkpoint that names the newest; '
            'name the one to resume from: --resume CHECKPOINT'
        )
    raise UsageError(
        f'{work_dir}: holds checkpoints that this run would overwrite ({names}); resume from the newest with '
        '--resume, use another --work-dir, or allow overwriting with --overwrite'
    )


def _check_state(checkpoint: TrainingCheckpoint) -> None:
    """Raise UsageError if a file lacks an entry that resuming needs, or if a part of one cannot be rebuilt."""
    path, content = checkpoint.path, checkpoint.content
    restart = f'start a new run from its weights with --cfg-options load_from={path}'
    if lacking := [name for name in STATE if name not in content]:
        raise UsageError(
            f'--resume: {path}: expected a training checkpoint, got weights without {" and ".join(lacking)}; {restart}'
        )
    if unknown := stubs_in({name: content.get(name) for name in (*STATE, 'param_schedulers')}) - {LOG_HISTORY}:
        raise UsageError(
            f'--resume: {path}: holds instances of {listed(sorted(unknown))}, which are not read from files; {restart}'
        )
