"""Decide which checkpoint a training run resumes from, and whether it may use its work dir."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config
from torch import nn

from mmpola.engine.training_checkpoint import (
    TrainingCheckpoint,
    fit_checkpoint,
    locate_checkpoint,
    read_training_checkpoint,
)
from mmpola.messages import UsageError, listed

RESUME_ENTRIES = ('meta', 'message_hub', 'optimizer')
"""Entries that a checkpoint needs, in addition to its weights, to resume training from it."""


def decide_resume(cfg: Config, overwrite: bool, model: nn.Module) -> Sequence[str]:
    """Decide what a training run resumes from, print it, and check that it may use its work dir.

    With `cfg.resume`, it resumes from the checkpoint `cfg.load_from` if it is set, else from the
    newest one in the work dir. If there is none, it starts from the first step, as in MMEngine.

    Args:
        cfg: config of the run; its `load_from` is set to the path, or `resume` to False.
        overwrite: allow the run to overwrite checkpoints.
        model: what `validate_config` returned for the config.

    Returns:
        Names of the classes that the checkpoint was trained on; empty if they are not known.

    Raises:
        UsageError: the work dir holds checkpoints of another config, or checkpoints that would be
            overwritten; or the checkpoint to resume from is missing, damaged, no training
            checkpoint, or does not fit the model. The message says what to do.
    """
    path = None
    if cfg.get('resume') and cfg.get('load_from'):
        path = locate_checkpoint(cfg.load_from)
    elif cfg.get('resume'):
        path = newest_checkpoint(cfg.work_dir)
    _check_work_dir(cfg, path, overwrite)
    if path is not None:
        checkpoint = _read_training_state(path)
        fit_checkpoint(checkpoint, model)
        cfg.load_from = str(path)
        meta = checkpoint.meta
        print(f'--resume: {path}, after {meta["epoch"]} epochs and {meta["iter"]} steps')
        return checkpoint.classes
    if cfg.get('resume'):
        cfg.resume = False
        print(f'--resume: {cfg.work_dir}: no checkpoint yet; training starts from the first step')
    return ()


def newest_checkpoint(work_dir: str | Path) -> Path | None:
    """Return the checkpoint that MMEngine recorded in `last_checkpoint`; None without a record.

    Raises:
        UsageError: neither the recorded file nor a file of its name in the work dir (which may have
            been moved) exists.
    """
    record = Path(work_dir) / 'last_checkpoint'
    if not record.is_file():
        return None
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
        earlier = []
        for other in _checkpoints(path.parent):
            if other != path and not other.name.startswith('best_'):  # those lack the optimizer
                earlier.append(other)
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
