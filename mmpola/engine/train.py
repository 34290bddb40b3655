"""Train and evaluate a config whose model, data and checkpoints have been checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmpola.checkpoint.init_cfg import check_pretrained, remove_pretrained
from mmpola.engine.processes import end_children_with_this_process, place
from mmpola.engine.training_checkpoint import (
    TrainingCheckpoint,
    read_training_checkpoint,
    starting_weights,
)
from mmpola.engine.validate import replace_sync_bn
from mmpola.messages import UsageError


class StartHook(Hook):
    """Loads weights that have been compared with the model, when training or a test begins.

    MMEngine's `load_from` finds no weights in the authors' files, and only warns of tensors that do
    not fit.

    Args:
        weights: tensors by the model's names.
    """

    priority = 'VERY_HIGH'

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def before_train(self, runner: Any) -> None:
        """Load the weights."""
        self._load(runner)

    def before_test(self, runner: Any) -> None:
        """Load the weights."""
        self._load(runner)

    def _load(self, runner: Any) -> None:
        model = runner.model
        while hasattr(model, 'module'):  # of DDP, or of test-time augmentation
            model = model.module
        model.load_state_dict(self.weights, strict=False)
        # EMAHook starts its average from them.
        runner.call_hook('after_load_checkpoint', checkpoint={'state_dict': self.weights})
        self.weights = {}


class ForgetHook(Hook):
    """Removes the record of an earlier run that this one overwrites, when everything is built.

    Without that, a later --resume could continue from the end of the earlier run.
    """

    def before_train(self, runner: Any) -> None:
        """Remove `last_checkpoint`."""
        if is_main_process():
            Path(runner.work_dir, 'last_checkpoint').unlink(missing_ok=True)


def train(cfg: Config, model: nn.Module, overwrite: bool = False) -> None:
    """Train with MMEngine's Runner.

    Args:
        cfg: config of the run, with `resume` and `load_from` as `decide_resume` has set them.
        model: what `validate_config` returned for it.
        overwrite: whether the run may overwrite checkpoints in its work dir.

    Raises:
        UsageError: another training run writes to the work dir; pretrained weights are missing;
            `load_from` does not fit the backbone; a checkpoint cannot be written; or the loss or
            the weights are not finite.
    """
    hooks: list[Hook] = []
    if cfg.get('resume'):
        # The checkpoint holds all weights, and the pretrained file may have been removed.
        remove_pretrained(cfg.model)
    else:
        check_pretrained(cfg.model)
        if cfg.get('load_from'):
            checkpoint = read_training_checkpoint(cfg.load_from)
            hooks.append(StartHook(starting_weights(checkpoint, model)))
            cfg.load_from = None
        if overwrite:
            hooks.append(ForgetHook())
    with locked(cfg):
        build_runner(cfg, hooks).train()


def evaluate(cfg: Config, checkpoint: TrainingCheckpoint) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test data and return the metrics."""
    cfg.load_from = None
    runner = build_runner(cfg, [StartHook(checkpoint.weights)])
    metrics: dict[str, float] = runner.test()
    return metrics


def build_runner(cfg: Config, hooks: list[Hook]) -> Runner:
    """Build MMEngine's Runner.

    Args:
        cfg: config of the run. In it, MMEngine's `CheckpointHook` is replaced, whose files
            torch.load refuses, and SyncBN if there is no GPU.
        hooks: registered in addition to the config's.
    """
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if saving.get('type') == 'CheckpointHook' and not saving.get('backend_args'):
        saving['type'] = 'mmpola.AtomicCheckpointHook'
    end_children_with_this_process()
    if cfg.launcher == 'none':
        replace_sync_bn(cfg.model, ('MMSyncBN',))  # as MMEngine does with SyncBN
    if cfg.launcher == 'pytorch' and not torch.cuda.is_available():
        _use_cpu_processes(cfg)
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    return runner


def _use_cpu_processes(cfg: Config) -> None:
    """Start a process group on CPUs, and replace SyncBN, which needs CUDA, in the config.

    MMEngine's launcher calls torch.cuda.set_device unless a process group exists. Its DDP wrapper
    passes device_ids, which a model on the CPU refuses.
    """
    torch.distributed.init_process_group('gloo')
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False
    )
    if replace_sync_bn(cfg.model, ('SyncBN', 'MMSyncBN')):
        print('no GPU: SyncBN, which needs CUDA, is replaced by BN of each process')


@contextmanager
def locked(cfg: Config) -> Iterator[None]:
    """Keep other training runs out of the work dir.

    Rank 0 holds a lock. The system releases it when the process ends, however it ends.

    Raises:
        UsageError: another training run holds the lock.
    """
    if place(cfg.launcher).rank > 0:
        yield
        return
    folder = Path(cfg.work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / 'training.lock').acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f'{folder}: another training run writes to it; use another --work-dir'
        ) from None
    with lock:
        yield
