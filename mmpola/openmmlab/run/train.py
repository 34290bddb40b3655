"""Train and evaluate a config whose model, data and checkpoints have been checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import nn

from mmpola.messages import UsageError, info
from mmpola.openmmlab.config.build import replace_sync_bn
from mmpola.openmmlab.config.contents import type_name
from mmpola.openmmlab.config.named_files import check_pretrained, teacher_files
from mmpola.openmmlab.processes import end_children_with_this_process, leave_process_group, place
from mmpola.openmmlab.run.runner import Runner
from mmpola.openmmlab.start.choose import Decision
from mmpola.openmmlab.start.classes import (
    STARTED,
    TAUGHT,
    ClassesHook,
    SharedClassesHook,
)
from mmpola.openmmlab.start.fit import (
    TrainingCheckpoint,
    known_classes,
    loads_classes,
    read_training_checkpoint,
    starting_weights,
)
from mmpola.openmmlab.start.forget import ForgetHook
from mmpola.openmmlab.start.resumed import ResumedHook
from mmpola.openmmlab.start.weights import StartHook

LOCK = 'training.lock'
"""Name of the file in the work dir that a training run locks."""


def train(
    cfg: Config,
    model: nn.Module,
    overwrite: bool,
    decision: Decision,
    printed: Sequence[str] = (),
) -> None:
    """Train with MMEngine's Runner; the caller holds the lock of the work dir, see `locked`.

    Args:
        cfg: config of the run, with `resume` and `load_from` as `decide_resume` has set them.
        model: what `validate_config` returned for it.
        overwrite: whether the run may overwrite checkpoints in its work dir.
        decision: what `decide_resume` returned.
        printed: lines that are on the screen already, for the log file.

    Raises:
        UsageError: pretrained weights are missing; `load_from` does not fit the backbone; its
            classes, or a teacher's, are the classes of the data in another order; the checkpoint to
            resume from has other classes; a checkpoint cannot be written; or the loss or the
            weights are not finite.
    """
    hooks: list[Hook] = []
    check_pretrained(cfg.model)
    for file in teacher_files(cfg.model):
        hooks.append(ClassesHook(file, known_classes(file), 'train_dataloader', TAUGHT))
    if cfg.get('resume'):
        hooks.append(ClassesHook(cfg.load_from, decision.classes, 'train_dataloader'))
        hooks.append(ResumedHook(cfg.load_from))
    elif cfg.get('load_from'):
        checkpoint = read_training_checkpoint(cfg.load_from)
        weights = starting_weights(checkpoint, model)
        shared = SharedClassesHook(checkpoint)
        others = {name: weights[name] for name in weights if name not in shared.weights}
        hooks.append(StartHook(others))
        if shared.weights:
            hooks.append(shared)
        elif loads_classes(weights, cfg.model):
            hooks.append(
                ClassesHook(checkpoint.path, checkpoint.classes, 'train_dataloader', STARTED)
            )
        cfg.load_from = None
    if overwrite:
        hooks.append(ForgetHook(decision.named, resumes=bool(cfg.get('resume'))))
    runner = build_runner(cfg, hooks)
    log_to_file(runner, printed)
    count_accumulation(runner)
    status = None
    try:
        runner.train()
    except SystemExit as stop:  # of PreemptionHook: all processes have saved
        status = stop.code
    del runner  # holds the process group
    leave_process_group()
    if status is not None:
        raise SystemExit(status)


def evaluate(
    cfg: Config, checkpoint: TrainingCheckpoint, printed: Sequence[str] = ()
) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test data and return the metrics.

    Args:
        cfg: config of the run.
        checkpoint: weights and classes.
        printed: lines that are on the screen already, for the log file.
    """
    cfg.load_from = None
    comparison = ClassesHook(checkpoint.path, checkpoint.classes, 'test_dataloader')
    runner = build_runner(cfg, [StartHook(checkpoint.weights), comparison])
    log_to_file(runner, printed)
    metrics: dict[str, float] = runner.test()
    del runner  # holds the process group
    leave_process_group()
    return metrics


def log_to_file(runner: Runner, lines: Sequence[str]) -> None:
    """Log lines before the first batch, until which the screen hides the level INFO."""
    for line in lines:
        runner.logger.info(line)


def count_accumulation(runner: Runner) -> None:
    """Let MMEngine scale the learning rate by the images per step of the optimizer.

    It counts the images of one forward pass; `accumulative_counts` passes make a step.
    """
    scaling = runner.auto_scale_lr or {}
    counts = runner.cfg.optim_wrapper.get('accumulative_counts', 1)
    if scaling.get('enable') and counts > 1:
        scaling['base_batch_size'] /= counts
        info(f'accumulative_counts={counts}: the learning rate is for {counts} times the batch')


def refuse_sharding(cfg: Config) -> None:
    """Raise UsageError if weights would be split among processes.

    MMEngine's Runner ignores `strategy`. Under the wrapper it initialises and saves the shard of
    the first process.
    """
    strategy = cfg.get('strategy')
    if strategy:
        raise UsageError(
            "strategy: expected none, because MMEngine's Runner ignores it, "
            f'got {strategy}; remove it, see docs/train.md'
        )
    wrapper = cfg.get('model_wrapper_cfg') or {}
    if type_name(wrapper.get('type')) == 'MMFullyShardedDataParallel':
        raise UsageError(
            "model_wrapper_cfg: expected a wrapper that keeps all weights, because MMEngine's "
            'Runner saves the weights of one process, got MMFullyShardedDataParallel; remove it, '
            'see docs/train.md'
        )


def build_runner(cfg: Config, hooks: list[Hook]) -> Runner:
    """Build MMEngine's Runner, with a short screen and the hooks that draw.

    Args:
        cfg: config of the run. In it, SyncBN is replaced if there is no GPU.
        hooks: registered in addition to the config's.
    """
    refuse_sharding(cfg)
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
    wrapper = cfg.get('model_wrapper_cfg') or {
        'type': 'MMDistributedDataParallel',
        'broadcast_buffers': False,
        'find_unused_parameters': cfg.get('find_unused_parameters', False),  # as in MMEngine
    }
    cfg.model_wrapper_cfg = {**wrapper, 'device_ids': None}
    if replace_sync_bn(cfg.model, ('SyncBN', 'MMSyncBN')):
        print('no GPU: SyncBN, which needs CUDA, is replaced by BN of each process')


@contextmanager
def locked(cfg: Config) -> Iterator[None]:
    """Keep other training runs out of the work dir.

    Rank 0 holds a lock. The system releases it when the process ends, however it ends. A run that
    is refused before it writes anything leaves no folder.

    Raises:
        UsageError: another training run holds the lock.
    """
    if place(cfg.launcher).rank > 0:
        yield
        return
    folder = Path(cfg.work_dir)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f'{folder}: another training run writes to it; use another --work-dir'
        ) from None
    with lock:
        try:
            yield
        except BaseException:
            if new and [path.name for path in folder.iterdir()] == [LOCK]:  # refused at the start
                (folder / LOCK).unlink()
                for path in new:
                    path.rmdir()
            raise
