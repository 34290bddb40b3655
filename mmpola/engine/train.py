"""Train and evaluate a config whose data and checkpoints have been checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import is_main_process
from torch import nn

from mmpola.checkpoint.safe_load import register_mmengine_reader
from mmpola.config_tree import nodes
from mmpola.engine.checkpoint import (
    TrainingCheckpoint,
    check_pretrained,
    check_start,
    read,
    remove_pretrained,
)
from mmpola.engine.hooks.checkpoint import SaveError
from mmpola.engine.hooks.finite import NonFiniteError
from mmpola.engine.processes import end_children_with_this_process, place
from mmpola.engine.resume import newest_checkpoint, written_folders
from mmpola.engine.training_state import Runner
from mmpola.messages import CTRL_C, UsageError


def train(
    cfg: Config, model: nn.Module, resume: TrainingCheckpoint | None = None, overwrite: bool = False
) -> None:
    """Train with MMEngine's Runner; on Ctrl-C without a `PreemptionHook`, print the checkpoint to resume from and exit.

    Args:
        cfg: config of the run.
        model: what `validate_config` returned for it.
        resume: what `decide_resume` returned for it.
        overwrite: whether the run may overwrite checkpoints in its work dir.

    Raises:
        UsageError: the work dir cannot be written to, pretrained weights of the config are missing,
            `load_from` does not fit its backbone, the checkpoint that it resumes from does not fit
            the run's optimizer, schedules or hooks, or another training is running in a folder that
            checkpoints are written to.
        SystemExit: status 130 after Ctrl-C, 75 after another signal, 1 if a checkpoint cannot be
            written, or the loss or the weights are not finite.
    """
    start = resume
    if start is None:
        check_pretrained(cfg)
        if cfg.get('load_from') and not cfg.get('resume'):
            start = read(cfg.load_from)
            print(check_start(start, cfg, model))
        if cfg.get('resume'):
            print(
                f'{cfg.work_dir}: no checkpoint to resume from yet; training starts from the first step'
            )
    else:
        remove_pretrained(
            cfg.model
        )  # the pretrained file may be gone since; the checkpoint holds all weights
    with _locked(cfg):
        if overwrite and not cfg.get(
            'resume'
        ):  # else a later --resume would continue from the end of the earlier run
            (Path(cfg.work_dir) / 'last_checkpoint').unlink(missing_ok=True)
        prepare_process(cfg, start)
        _run(cfg)


@contextmanager
def _locked(cfg: Config) -> Iterator[None]:
    """Keep other training runs out of the folders that this one writes to.

    Rank 0 holds a lock in each, which ends with its process, however that ends.
    """
    with ExitStack() as locks:
        if place(cfg.launcher).rank == 0:
            for folder in written_folders(cfg):
                locks.enter_context(_lock(folder))
        yield


def _lock(folder: Path) -> AbstractContextManager[Any]:
    """Return a lock on a folder, held until its context ends.

    Raises:
        UsageError: another training run holds it, or the folder cannot be written to.
    """
    try:
        make_writable(folder)
        return FileLock(folder / 'training.lock', timeout=0).acquire()
    except Timeout:
        raise UsageError(
            f'{folder}: another training is running in it; use another --work-dir'
        ) from None
    except OSError as error:
        raise UsageError(
            f'{folder}/training.lock: expected a file that can be written to, got '
            f'{error.strerror or error}; use another --work-dir'
        ) from None


def make_writable(folder: Path) -> None:
    """Create a folder if it does not exist, and check that files can be written to it.

    Raises:
        UsageError: the system refuses that.
    """
    rule = f'{folder}: expected a folder that can be written to, got'
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f'{rule} {error.strerror or error}; use another --work-dir') from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f'{rule} a read-only one; use another --work-dir')


def _run(cfg: Config) -> None:
    try:
        Runner.from_cfg(cfg).train()
    except KeyboardInterrupt:
        print(f'interrupted; {_how_to_resume(cfg)}', file=sys.stderr)
        sys.exit(CTRL_C)
    except SaveError as error:
        sys.exit(f'error: {error}; {_how_to_resume(cfg)}')
    except NonFiniteError as error:  # in every process
        newest = newest_checkpoint(cfg.work_dir)
        left = f'{newest} is the newest checkpoint and finite' if newest else 'nothing was saved'
        sys.exit(f'error: {error}; {left}' if is_main_process() else 1)
    except FileNotFoundError as error:
        if Path(cfg.work_dir).is_dir():
            raise
        lost = f'{error.strerror}: {error.filename}'
        sys.exit(f'error: {cfg.work_dir}: was removed while training ran ({lost})')


def _how_to_resume(cfg: Config) -> str:
    newest = newest_checkpoint(cfg.work_dir)
    return f'--resume continues from {newest}' if newest else 'nothing was saved yet'


def evaluate(cfg: Config, checkpoint: TrainingCheckpoint) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test data and return the metrics.

    Raises:
        UsageError: the work dir cannot be written to.
    """
    cfg.load_from = checkpoint.path
    make_writable(Path(cfg.work_dir))
    prepare_process(cfg, checkpoint)
    metrics: dict[str, float] = Runner.from_cfg(cfg).test()
    return metrics


def prepare_process(cfg: Config, checkpoint: TrainingCheckpoint | None = None) -> None:
    """Prepare the process for MMEngine's Runner: reading checkpoints, workers that end, process groups on a CPU.

    Args:
        cfg: config of the run; on a CPU, SyncBN is replaced in it, because that needs CUDA.
        checkpoint: named by `cfg.load_from`. It is not read again, and emptied here: MMEngine frees
            what it has loaded.
    """
    contents = {}
    if checkpoint is not None:
        contents[cfg.load_from] = {**checkpoint.content, 'state_dict': checkpoint.weights}
        checkpoint.content, checkpoint.weights = {}, {}
    register_mmengine_reader(contents)
    end_children_with_this_process()
    if cfg.launcher == 'pytorch' and not torch.cuda.is_available():
        # MMEngine's launcher calls torch.cuda.set_device; it skips that where a process group
        # already exists, and its DDP wrapper passes device_ids, which a model on the CPU refuses.
        torch.distributed.init_process_group('gloo')
        if _replace_sync_bn(cfg.model):
            print(
                'no GPU: SyncBN, which needs CUDA, is replaced by BN; each process normalises its own images'
            )
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False
        )


def _replace_sync_bn(model: Any) -> int:
    """Turn every norm_cfg of type SyncBN inside a model's config into BN and return their number."""
    found = [node for _, node in nodes(model, 'model') if node.get('type') == 'SyncBN']
    for node in found:
        node['type'] = 'BN'
    return len(found)
