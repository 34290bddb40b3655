"""Train and evaluate a config whose data and checkpoints have been checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from mmpola.checkpoint.init_cfg import check_pretrained, remove_pretrained
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.config_tree import nodes
from mmpola.engine.hooks.atomic_checkpoint import SaveError
from mmpola.engine.hooks.finite import NonFiniteError
from mmpola.engine.mistakes import mistakes_in_one_line
from mmpola.engine.processes import end_children_with_this_process, place
from mmpola.engine.resume import newest_checkpoint, written_folders
from mmpola.engine.training_checkpoint import (
    TrainingCheckpoint,
    check_start,
    read_training_checkpoint,
)
from mmpola.engine.training_state import Runner
from mmpola.messages import CTRL_C, UsageError, info


def train(
    cfg: Config, model: nn.Module, resume: TrainingCheckpoint | None = None, overwrite: bool = False
) -> None:
    """Train with MMEngine's Runner.

    On Ctrl-C without a `PreemptionHook`, print the checkpoint to resume from and exit.

    Args:
        cfg: config of the run.
        model: what `validate_config` returned for it.
        resume: what `decide_resume` returned for it.
        overwrite: whether the run may overwrite checkpoints in its work dir.

    Raises:
        UsageError: the work dir cannot be written to, or another training run writes to it;
            pretrained weights are missing; `load_from` does not fit the backbone; a part of the
            config cannot be built; or the checkpoint to resume from does not fit the run's
            optimizer, schedules or hooks.
        SystemExit: status 130 after Ctrl-C, 75 after another signal, 1 if a checkpoint cannot be
            written, or the loss or the weights are not finite.
    """
    start = resume
    if resume is not None:
        # The checkpoint holds all weights, and the pretrained file may have been removed.
        remove_pretrained(cfg.model)
    else:
        check_pretrained(cfg.model)
        if cfg.get('resume'):
            print(
                f'{cfg.work_dir}: no checkpoint to resume from yet; training starts from the first '
                'step'
            )
        elif cfg.get('load_from'):
            start = read_training_checkpoint(cfg.load_from)
            print(check_start(start, cfg, model))
    with locked(cfg):
        if overwrite and not cfg.get('resume'):
            # A later --resume would continue from the end of the earlier run.
            (Path(cfg.work_dir) / 'last_checkpoint').unlink(missing_ok=True)
        try:
            with mistakes_in_one_line(cfg._cfg_dict):
                build_runner(cfg, start).train()
        except KeyboardInterrupt:
            print(f'interrupted; {_how_to_resume(cfg)}', file=sys.stderr)
            sys.exit(CTRL_C)
        except SaveError as error:
            sys.exit(f'error: {error}; {_how_to_resume(cfg)}')
        except NonFiniteError as error:
            if not is_main_process():  # every process raises it, one says so
                sys.exit(1)
            newest = newest_checkpoint(cfg.work_dir)
            left = 'nothing was saved'
            if newest:
                left = f'{newest} is the newest checkpoint and finite'
            sys.exit(f'error: {error}; {left}')
        except FileNotFoundError as error:
            if Path(cfg.work_dir).is_dir():
                raise
            lost = f'{error.strerror}: {error.filename}'
            sys.exit(f'error: {cfg.work_dir}: was removed while training ran ({lost})')


def evaluate(cfg: Config, checkpoint: TrainingCheckpoint) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test data and return the metrics.

    Raises:
        UsageError: the work dir cannot be written to, or a part of the config cannot be built.
    """
    cfg.load_from = checkpoint.path
    make_writable(Path(cfg.work_dir))
    with mistakes_in_one_line(cfg._cfg_dict):
        metrics: dict[str, float] = build_runner(cfg, checkpoint).test()
    return metrics


def build_runner(cfg: Config, checkpoint: TrainingCheckpoint | None = None) -> Runner:
    """Build MMEngine's Runner, with our reader and writer of checkpoints instead of MMEngine's.

    MMEngine's reader can run code that a file contains, and finds nothing in the authors' files.
    The files of its `CheckpointHook` are refused by torch.load.

    Args:
        cfg: config of the run; the hook and, without a GPU, SyncBN are replaced in it.
        checkpoint: the one that `cfg.load_from` names. MMEngine gets its content instead of reading
            the file again, and it is emptied here, so that MMEngine can free the memory.
    """
    contents = {}
    if checkpoint is not None:
        contents[cfg.load_from] = {**checkpoint.content, 'state_dict': checkpoint.weights}
        checkpoint.content = {}
        checkpoint.weights = {}
    register_mmengine_reader(contents)
    replaced = "checkpoints are read by mmpola's read_checkpoint instead of MMEngine's loader"
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    writes_to_local_folder = not hook.get('backend_args')
    if hook.get('type') == 'CheckpointHook' and writes_to_local_folder:
        hook['type'] = 'mmpola.AtomicCheckpointHook'
        replaced += ', and written by mmpola.AtomicCheckpointHook instead of CheckpointHook'
    end_children_with_this_process()
    if cfg.launcher == 'pytorch' and not torch.cuda.is_available():
        _use_cpu_processes(cfg)
    runner = Runner.from_cfg(cfg)
    info(replaced)  # in the log file, which the Runner has opened
    return runner


def register_mmengine_reader(already_read: dict[str, Any] | None = None) -> None:
    """Make MMEngine read checkpoints with `read_checkpoint`, wherever it reads them.

    Args:
        already_read: contents by path. MMEngine gets these instead of reading the file again; each
            is then removed from this dict, so that its memory is freed.
    """
    contents = already_read
    if contents is None:
        contents = {}

    # MMEngine logs the part of this function's name after `load_from_`.
    def load_from_name(filename: str, map_location: Any = None) -> Any:
        if filename in contents:
            return contents.pop(filename)
        return read_checkpoint(filename, map_location)

    CheckpointLoader.register_scheme(
        prefixes=('', 'http://', 'https://'), loader=load_from_name, force=True
    )


def _use_cpu_processes(cfg: Config) -> None:
    """Start a process group on CPUs, and replace SyncBN, which needs CUDA, in the config.

    MMEngine's launcher calls torch.cuda.set_device unless a process group exists. Its DDP wrapper
    passes device_ids, which a model on the CPU refuses.
    """
    torch.distributed.init_process_group('gloo')
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False
    )
    if replace_sync_bn(cfg.model):
        print(
            'no GPU: SyncBN, which needs CUDA, is replaced by BN; each process normalises its own '
            'images'
        )


def replace_sync_bn(model: dict[str, Any]) -> int:
    """Turn every norm_cfg of type SyncBN inside a model's config into BN; return their number."""
    replaced = 0
    for _, node in nodes(model, 'model'):
        if node.get('type') == 'SyncBN':
            node['type'] = 'BN'
            replaced += 1
    return replaced


@contextmanager
def locked(cfg: Config) -> Iterator[None]:
    """Keep other training runs out of the folders that this one writes to.

    Rank 0 holds a lock in each. The system releases it when the process ends, however it ends.

    Raises:
        UsageError: another training run holds a lock, or a folder cannot be written to.
    """
    with ExitStack() as locks:
        if place(cfg.launcher).rank == 0:
            for folder in written_folders(cfg):
                make_writable(folder)
                lock = FileLock(folder / 'training.lock', timeout=0)
                try:
                    locks.enter_context(lock.acquire())
                except Timeout:
                    raise UsageError(
                        f'{folder}: another training run writes to it; use another --work-dir'
                    ) from None
                except OSError as error:
                    raise UsageError(
                        f'{folder}/training.lock: expected a file that can be written to, got '
                        f'{error.strerror or error}; use another --work-dir'
                    ) from None
        yield


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


def _how_to_resume(cfg: Config) -> str:
    newest = newest_checkpoint(cfg.work_dir)
    if newest is None:
        return 'nothing was saved yet'
    return f'--resume continues from {newest}'
