"""Decide which checkpoint a training run resumes from, and whether it may use its work dir."""

from __future__ import annotations

import os
from pathlib import Path

from mmengine.config import Config
from torch import nn

from mmpola.engine.training_checkpoint import (
    TrainingCheckpoint,
    check_fits,
    locate_checkpoint,
    read_training_checkpoint,
)
from mmpola.engine.training_state import check_state, restart_advice
from mmpola.messages import UsageError, listed


def decide_resume(cfg: Config, overwrite: bool, model: nn.Module) -> TrainingCheckpoint | None:
    """Decide what a training run resumes from, and check that it may use its work dir.

    With `cfg.resume`, it resumes from the checkpoint `cfg.load_from` if it is set, else from the
    newest one in the work dir. If there is none, it starts from the first step, as in MMEngine.

    Args:
        cfg: config of the run; its `load_from` is set to the path.
        overwrite: allow the run to overwrite checkpoints.
        model: what `validate_config` returned for the config.

    Raises:
        UsageError: the work dir holds checkpoints of another config, or checkpoints that would be
            overwritten; or the checkpoint to resume from is missing, is not a training checkpoint,
            was written by another config, or does not fit the model. The message says what to do.
    """
    path = None
    if cfg.get('resume') and cfg.get('load_from'):
        path = locate_checkpoint(cfg.load_from)
    elif cfg.get('resume'):
        path = newest_checkpoint(cfg.work_dir)
    _check_work_dir(cfg, path, overwrite)
    if path is None:
        return None
    try:
        checkpoint = read_training_checkpoint(path)
    except UsageError as error:
        older = _newest_intact(cfg)
        if older is None:
            raise
        raise UsageError(f'{error}; the newest intact one: --resume {older}') from None
    check_state(checkpoint)
    check_fits(checkpoint, cfg, model)
    own = cfg.get('experiment_name') or Path(cfg.filename).stem
    if checkpoint.config_name not in (None, own):
        raise UsageError(
            f'--resume: {path}: expected a checkpoint of {own}, got one of '
            f'{checkpoint.config_name}; {restart_advice(str(path))}'
        )
    cfg.load_from = checkpoint.path
    return checkpoint


def progress_if_finished(checkpoint: TrainingCheckpoint, cfg: Config) -> str | None:
    """Return the progress, such as '12 of 12 epochs', if a run has finished; None if it has not."""
    end = cfg.train_cfg.get('max_epochs')
    done = checkpoint.meta.get('epoch')
    unit = 'epochs'
    if not end:
        end = cfg.train_cfg.get('max_iters')
        done = checkpoint.meta.get('iter')
        unit = 'steps'
    if done is None or end is None or done < end:
        return None
    return f'{done} of {end} {unit}'


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
        if os.path.isfile(path):  # unlike Path.is_file, it accepts any name
            return path
    raise UsageError(
        f'{record}: names {recorded}, which does not exist; correct the line, or remove the file '
        'and name the checkpoint to resume from: --resume CHECKPOINT'
    )


def written_folders(cfg: Config) -> list[Path]:
    """List the folders that a run writes checkpoints to: its work dir, then `out_dir`, if set.

    `out_dir` is an argument of the checkpoint hook. MMEngine writes to the folder in it that has
    the name of the work dir; a URL is no folder.
    """
    work_dir = Path(cfg.work_dir)
    absolute = os.path.abspath(work_dir)
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    out_dir = hook.get('out_dir')
    if out_dir in (None, absolute) or '://' in str(out_dir):
        return [work_dir]
    return [work_dir, Path(out_dir, os.path.basename(absolute))]


def _checkpoints(cfg: Config) -> list[Path]:
    """Return the checkpoints in the folders that a run writes to, the newest last."""
    found = [path for folder in written_folders(cfg) for path in folder.glob('*.pth')]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _newest_intact(cfg: Config) -> Path | None:
    """Return the newest checkpoint that training can resume from; None if there is none."""
    for path in reversed(_checkpoints(cfg)):
        if _is_intact(path):
            return path
    return None


def _is_intact(path: Path) -> bool:
    """Whether a checkpoint can be read and has what resuming needs."""
    try:
        check_state(read_training_checkpoint(path))
    except UsageError:
        return False
    return True


def _check_work_dir(cfg: Config, path: Path | None, overwrite: bool) -> None:
    """Raise UsageError if a run that resumes from `path` may not overwrite what is there."""
    work_dir = Path(cfg.work_dir)
    checkpoints = _checkpoints(cfg)
    if not checkpoints:
        return
    folder = checkpoints[-1].parent
    own = Path(cfg.filename).name
    configs = sorted(path.name for path in work_dir.glob('*.py'))
    if configs and own not in configs:
        raise UsageError(
            f'{work_dir}: holds checkpoints of {listed(configs)}, not of {own}; '
            'use another --work-dir, or resume the earlier run with its own config'
        )
    if overwrite:
        return
    names = listed(checkpoint.name for checkpoint in reversed(checkpoints))
    if path is not None:
        newest = newest_checkpoint(work_dir) or checkpoints[-1]
        if path.resolve() == newest.resolve():
            return
        if not _is_intact(newest):
            older = _newest_intact(cfg)
            if older is not None and path.resolve() == older.resolve():
                return
    elif cfg.get('resume'):
        raise UsageError(
            f'{folder}: holds checkpoints ({names}) but no last_checkpoint that names the newest; '
            'name the one to resume from: --resume CHECKPOINT'
        )
    raise UsageError(
        f'{folder}: holds checkpoints that this run would overwrite ({names}); resume from the '
        'newest with --resume, use another --work-dir, or allow overwriting with --overwrite'
    )
