"""What train.py asks before it writes into a work dir: whose it is, and whether a training can go on from a file."""

from __future__ import annotations

from pathlib import Path

from mmengine.config import Config

from mmpola.checkpoint import training as training_checkpoint
from mmpola.checkpoint.training import TrainingCheckpoint
from mmpola.messages import UsageError, listed

STATE = ('meta', 'message_hub', 'optimizer')
"""What a checkpoint must hold beside its weights for a training to go on from it."""


def check_work_dir(cfg: Config, overwrite: bool) -> None:
    """Keep the checkpoints of an earlier training.

    They may be written over only when the training goes on from the newest of them, or by --overwrite.

    Raises:
        UsageError: the work dir holds checkpoints of another config, or this training would write over its own.
    """
    work_dir = Path(cfg.work_dir)
    checkpoints = sorted(work_dir.glob('*.pth'), key=lambda path: path.stat().st_mtime)
    if not checkpoints:
        return
    own = Path(cfg.filename).name
    others = sorted(path.name for path in work_dir.glob('*.py'))
    if others and own not in others:
        raise UsageError(
            f'{work_dir}: holds checkpoints of {listed(others)}, and this training is of {own}; '
            'give it another --work-dir, or go on with the config of that one by --resume'
        )
    if overwrite or (cfg.get('resume') and _is_newest(cfg, checkpoints)):
        return
    if cfg.get('resume') and not cfg.get('load_from'):
        raise UsageError(
            f'{work_dir}: holds checkpoints ({listed(path.name for path in reversed(checkpoints))}) and no '
            'last_checkpoint that names the newest; name the one to go on from: --resume CHECKPOINT'
        )
    raise UsageError(
        f'{work_dir}: holds checkpoints that this training would write over '
        f'({listed(path.name for path in reversed(checkpoints))}); go on from the newest by --resume, '
        'train elsewhere by --work-dir, or let it write over them by --overwrite'
    )


def _is_newest(cfg: Config, checkpoints: list[Path]) -> bool:
    """Whether the checkpoint to go on from is the work dir's newest: the noted one, else the last that was written."""
    named = cfg.get('load_from')
    if not named:
        return newest_checkpoint(cfg) is not None
    noted = (Path(cfg.work_dir) / 'last_checkpoint').is_file()
    newest = newest_checkpoint(cfg) if noted else checkpoints[-1]
    return newest is not None and Path(named).resolve() == newest.resolve()


def newest_checkpoint(cfg: Config) -> Path | None:
    """The checkpoint that MMEngine noted in the work dir as its last, None if there is no note.

    Raises:
        UsageError: the file that it names is gone, and no file of its name is in the work dir, moved with it.
    """
    note = Path(cfg.work_dir) / 'last_checkpoint'
    if not note.is_file():
        return None
    noted = Path(note.read_text().strip())
    for path in (note.parent / noted.name, noted):
        if path.is_file():
            return path
    raise UsageError(
        f'{note}: names {noted}, which is not there; correct the line, or remove the file and name '
        'a checkpoint to go on from: --resume CHECKPOINT'
    )


def check_resume(cfg: Config) -> str | None:
    """Hold the checkpoint that the training goes on from against the config; says so if that training is finished.

    Writes its path to `load_from`. Without any checkpoint the training begins anew, as MMEngine has it.

    Raises:
        UsageError: it is no training checkpoint, is of another config, or does not fit the model.
    """
    path = cfg.get('load_from') or newest_checkpoint(cfg)
    if path is None:
        return None
    cfg.load_from = str(path)
    checkpoint = training_checkpoint.read(path)
    if lacking := [name for name in STATE if name not in checkpoint.content]:
        raise UsageError(
            f'--resume: {path}: no checkpoint to go on from: it has weights but no {" and no ".join(lacking)}; '
            f'start anew from its weights by --cfg-options load_from={path}'
        )
    training_checkpoint.check_fits(checkpoint, cfg)
    own = cfg.get('experiment_name') or Path(cfg.filename).stem
    if checkpoint.training not in (None, own):
        raise UsageError(
            f'--resume: {path}: was written by a training of {checkpoint.training}, and this one is of {own}; '
            f'start anew from its weights by --cfg-options load_from={path}'
        )
    return _finished(checkpoint, cfg)


def _finished(checkpoint: TrainingCheckpoint, cfg: Config) -> str | None:
    """A sentence if the checkpoint is at, or beyond, the end that the config sets."""
    epochs, steps = cfg.train_cfg.get('max_epochs'), cfg.train_cfg.get('max_iters')
    key, end, unit = ('epoch', epochs, 'epochs') if epochs else ('iter', steps, 'steps')
    done = checkpoint.meta.get(key)
    if done is None or end is None or done < end:
        return None
    return f'{checkpoint.path}: this training is finished: {done} of {end} {unit}'
