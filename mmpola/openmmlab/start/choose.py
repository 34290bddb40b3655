"""Decide which checkpoint a training run resumes from, and whether it may use its work dir."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmpola.checkpoint.hub import resolve_checkpoint
from mmpola.messages import UsageError, counted, listed
from mmpola.openmmlab.config.named_files import named_files, remove_pretrained
from mmpola.openmmlab.processes import print_once
from mmpola.openmmlab.run.final_test import is_test_due
from mmpola.openmmlab.run.loops import VALIDATION_DUE
from mmpola.openmmlab.start.fit import (
    TrainingCheckpoint,
    fit_checkpoint,
    read_training_checkpoint,
)

RESUME_ENTRIES = ('meta', 'message_hub', 'optimizer')
"""Entries that a checkpoint needs, in addition to its weights, to resume training from it."""

AUTO = 'auto'
"""What stands for the newest checkpoint of a work dir."""


class Decision(NamedTuple):
    """What `decide_resume` found.

    Attributes:
        named: local files that the config names.
        classes: names of the classes that the checkpoint to resume from was trained on; empty if
            they are not known.
        finished: whether the run has ended, so that nothing is left to do.
    """

    named: Sequence[str] = ()
    classes: Sequence[str] = ()
    finished: bool = False


def decide_resume(
    cfg: Config, overwrite: bool, model: nn.Module, resume: str | None = None
) -> Decision:
    """Decide what a training run resumes from, print it, and check that it may use its work dir.

    Without a checkpoint to resume from, the run starts from the first step, as in MMEngine, and
    from `cfg.load_from` if it is set.

    Args:
        cfg: config of the run. Its `resume` is set to whether there is such a checkpoint, and its
            `load_from` to the path. Each `init_cfg` whose weights are in the checkpoint is then
            None: its file may have been removed.
        overwrite: allow the run to overwrite checkpoints.
        model: what `validate_config` returned for the config.
        resume: the checkpoint to resume from, or 'auto' for the newest one in the work dir; None to
            do as `cfg.resume` says, which is from `cfg.load_from`, or else from the newest one.

    Raises:
        UsageError: the work dir holds checkpoints of another config, or checkpoints that would be
            overwritten; or the checkpoint to resume from is missing, damaged, no training
            checkpoint, or does not fit the model. The message says what to do.
    """
    if resume is None and cfg.get('resume'):
        resume = cfg.get('load_from') or AUTO
    path = None
    if resume == AUTO:
        path = newest_checkpoint(cfg.work_dir)
        record = Path(cfg.work_dir, 'last_checkpoint')
        if path is not None and not (record.is_file() and record.stat().st_size > 0):
            text = f'--resume: {record}: names no checkpoint; the newest one is taken'
            print_once(text, cfg.launcher)
    elif resume is not None:
        path = resolve_checkpoint(resume)
    _check_work_dir(cfg, path, overwrite)
    named = named_files(cfg._cfg_dict)
    if path is not None:
        checkpoint = _read_training_state(path)
        fit_checkpoint(checkpoint, model)
        _check_optimizer(checkpoint, cfg, model)
        cfg.resume = True
        cfg.load_from = str(path)
        remove_pretrained(cfg.model)
        finished = _is_finished(checkpoint, cfg)
        left = ''
        if finished:
            left = '; the run has ended, nothing is left to train or validate'
        print_once(f'--resume: {path}, after {_progress(checkpoint)}{left}', cfg.launcher)
        return Decision([*named, str(path)], checkpoint.classes, finished)
    if resume is not None:
        cfg.resume = False
        text = f'--resume: {cfg.work_dir}: no checkpoint yet; training starts from the first step'
        print_once(text, cfg.launcher)
    return Decision(named)


def _check_optimizer(checkpoint: TrainingCheckpoint, cfg: Config, model: nn.Module) -> None:
    """Raise UsageError if the optimizer of a checkpoint has other parameters than the config's.

    MMEngine would say so when data and model are ready, and without a remedy.
    """
    wrapper = dict(cfg.optim_wrapper)
    if 'optimizer' in wrapper:  # autocast and its scaler may need a GPU
        kept = ('constructor', 'optimizer', 'paramwise_cfg')
        wrapper = {key: wrapper[key] for key in kept if key in wrapper}
    logger = MMLogger.get_current_instance()
    was_disabled = logger.disabled
    logger.disabled = True  # the runner builds it again
    try:
        built = build_optim_wrapper(model, copy.deepcopy(wrapper))
    except Exception:  # of any constructor; the runner will say what is wrong
        return
    finally:
        logger.disabled = was_disabled
    saved = _group_sizes(checkpoint.content['optimizer'])
    wanted = _group_sizes(built.state_dict())
    if saved != wanted:
        raise UsageError(
            f'--resume: {checkpoint.path}: expected an optimizer of '
            f'{counted(sum(wanted), "parameter")} in {counted(len(wanted), "group")}, as in the '
            f'config, got {sum(saved):,} in {len(saved):,}: another optimizer, or other layers '
            'were frozen (frozen_stages); start a new run from its weights with --cfg-options '
            f'load_from={checkpoint.path}'
        )


def _group_sizes(state: Mapping[str, Any]) -> list[int]:
    """Return the number of parameters in each group of one or several optimizers' state."""
    if 'param_groups' in state:
        return [len(group['params']) for group in state['param_groups']]
    sizes = []
    for part in state.values():
        if isinstance(part, Mapping):
            sizes += _group_sizes(part)
    return sizes


def _progress(checkpoint: TrainingCheckpoint) -> str:
    """Return the steps of a checkpoint in words, with the epochs that they completed."""
    text = counted(checkpoint.meta['iter'], 'step')
    epochs = checkpoint.meta['epoch']
    if epochs > 0:
        text += f' in all, with {counted(epochs, "complete epoch")}'
    return text


def _is_finished(checkpoint: TrainingCheckpoint, cfg: Config) -> bool:
    """Whether a checkpoint is from the end of the config's run, validation and test included."""
    end = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.get('max_iters')
    done = checkpoint.meta['iter']
    if 'max_epochs' in cfg.train_cfg:
        done = checkpoint.meta['epoch']
    validates = checkpoint.content['message_hub']['runtime_info'].get(VALIDATION_DUE)
    return end is not None and done >= end and not validates and not is_test_due(cfg)


def newest_checkpoint(work_dir: str | Path) -> Path | None:
    """Return the checkpoint that MMEngine recorded in `last_checkpoint`.

    A run that is killed after its first checkpoint was written has no record of it yet: without a
    record it is the newest file, and with an empty one, which `ForgetHook` leaves of an earlier
    run, the newest file that is newer than it. None if there is none.

    Raises:
        UsageError: neither the recorded file nor a file of its name in the work dir (which may have
            been moved) exists.
    """
    record = Path(work_dir) / 'last_checkpoint'
    began = 0.0
    if record.is_file():
        began = record.stat().st_mtime
    if not record.is_file() or record.stat().st_size == 0:
        written = [path for path in _resumable(record.parent) if path.stat().st_mtime > began]
        return written[-1] if written else None
    recorded = Path(os.fsdecode(record.read_bytes()).strip())
    for path in (record.parent / recorded.name, recorded):
        if path.is_file():
            return path
    raise UsageError(
        f'{record}: names {recorded}, which does not exist; resume from another checkpoint with '
        '--resume CHECKPOINT --overwrite'
    )


def _read_training_state(path: Path) -> TrainingCheckpoint:
    """Read a checkpoint to resume from."""
    try:
        checkpoint = read_training_checkpoint(path)
    except UsageError as error:
        earlier = [other for other in _resumable(path.parent) if other != path]
        if not earlier:
            raise
        raise UsageError(
            f'{error}; the one before it: --resume {earlier[-1]} --overwrite'
        ) from None
    missing = [name for name in RESUME_ENTRIES if name not in checkpoint.content]
    if missing:
        raise UsageError(
            f'--resume: {path}: expected a training checkpoint, got one without '
            f'{listed(missing)}; start a new run from its weights with --cfg-options '
            f'load_from={path}'
        )
    return checkpoint


def _resumable(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder that have an optimizer, the newest last."""
    return [path for path in _checkpoints(folder) if not path.name.startswith('best_')]


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last."""
    return sorted(folder.glob('*.pth'), key=lambda path: path.stat().st_mtime)


def _check_work_dir(cfg: Config, path: Path | None, overwrite: bool) -> None:
    """Raise UsageError if a run that resumes from `path` may not overwrite what is there."""
    work_dir = Path(cfg.work_dir)
    checkpoints = _checkpoints(work_dir)
    if not checkpoints:
        return
    own = Path(cfg.filename).name
    configs = sorted(path.name for path in work_dir.glob('*.py'))
    if configs and own not in configs:
        raise UsageError(
            f'{work_dir}: holds checkpoints of {listed(configs)}, not of {own}; '
            'use another --work-dir, or resume the earlier run with its own config'
        )
    if overwrite:
        return
    newest = newest_checkpoint(work_dir) or checkpoints[-1]
    if path is not None and path.resolve() == newest.resolve():
        return
    names = listed(checkpoint.name for checkpoint in reversed(checkpoints))
    raise UsageError(
        f'{work_dir}: holds checkpoints that this run would overwrite ({names}); resume from the '
        f'newest with --resume {newest}, use another --work-dir, or allow overwriting with '
        '--overwrite'
    )
