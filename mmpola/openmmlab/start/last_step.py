"""Keep the trained steps of a run that ends by an error."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import EMAHook, Hook, ParamSchedulerHook
from mmengine.optim import OptimWrapperDict
from torch.distributed import DistError
from torch.distributed.optim import ZeroRedundancyOptimizer

from mmpola.messages import UsageError, counted, first_line
from mmpola.openmmlab.run.advice import is_by_epoch
from mmpola.openmmlab.run.atomic_checkpoint import (
    ATOMIC_BACKEND,
    INTERRUPTED,
    AtomicCheckpointHook,
    save_and_point,
)
from mmpola.openmmlab.run.finite import NonFiniteError
from mmpola.openmmlab.run.mean_buffers import MeanBuffersHook


def keep_last_step(runner: Any, error: Exception) -> None:
    """Save `interrupted.pth` unless a checkpoint of the last step exists, and say so.

    `--resume` continues from it. Nothing is saved without a checkpoint hook. Of several processes,
    the first saves its own weights, which the steps keep equal, and waits for no other: one that
    has failed will not answer. It saves nothing if the error is NCCL's, which the GPU may report
    after a step with wrong gradients, or if the optimizer is sharded.

    If another process dies before the statistics of BatchNorm are averaged, the statistics of the
    first process are saved, and a message says so: the resumed run does not equal an
    uninterrupted one bit for bit.

    Args:
        runner: of the run, in the state in which the error has left it.
        error: that ended the run.
    """
    saving = next((hook for hook in runner.hooks if isinstance(hook, AtomicCheckpointHook)), None)
    if saving is None or saving.saved_at is None or not is_main_process():
        return
    alone = get_world_size() > 1
    if alone and (isinstance(error, (DistError, NonFiniteError)) or is_sharded(runner)):
        return
    waiting = complete_step(runner, error)
    if runner.iter <= saving.saved_at:
        return
    try:
        save_and_point(
            runner,
            runner.work_dir,
            INTERRUPTED,
            alone=alone,
            meta={'epoch': runner.epoch, 'iter': runner.iter},
            by_epoch=False,
            backend_args=ATOMIC_BACKEND,
        )
    except Exception as problem:  # a broken GPU, a full disk, weights that are not finite
        if not isinstance(error, UsageError):
            runner.logger.error(f'the last steps are not saved: {first_line(problem)}')
        return
    statistics = _statistics(runner)
    note = ''
    if statistics in waiting and statistics.own_norms():
        note = ', with the statistics of BatchNorm of the first process only'
    runner.logger.error(
        f'{first_line(error)}: stopped after {counted(runner.iter, "step")}; --resume continues '
        f'from {runner.work_dir}/{INTERRUPTED}{note}'
    )


def _statistics(runner: Any) -> Any:
    """Return the hook of the statistics of BatchNorm; None if a config leaves it out."""
    return next((hook for hook in runner.hooks if isinstance(hook, MeanBuffersHook)), None)


def is_sharded(runner: Any) -> bool:
    """Whether each process has a part of an optimizer's state, which all of them must collect."""
    wrapper = runner.optim_wrapper
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return any(isinstance(one.optimizer, ZeroRedundancyOptimizer) for one in wrappers)


def complete_step(runner: Any, error: Exception) -> Sequence[Hook]:
    """Bring schedule, averages, statistics and counters of a run to its weights.

    A step that fails may have changed the statistics of BatchNorm. A hook that fails after a step
    keeps later ones from following it, and in a validation the model has the averaged weights. The
    traceback of the error says where the run was.

    Returns:
        The hooks that have not followed the last step: the one that has failed and later ones.
    """
    loop = runner.train_loop
    in_step = False
    in_validation = False
    call = ''
    arguments: dict[str, Any] = {}
    waiting: list[Hook] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        owner: Any = names.get('self', frame)
        method = frame.f_code.co_name
        if owner is loop and not call:
            in_step = method == 'run_iter'
        elif owner is runner.val_loop and not in_validation:
            in_validation = True
            call = ''  # a hook may validate
        elif owner is runner and method == 'call_hook' and not call:
            call = names['fn_name']
            arguments = names['kwargs']
            failed = names.get('hook', runner.hooks[0])
            waiting = runner.hooks[runner.hooks.index(failed) :]
    if in_validation:
        for hook in runner.hooks:
            exchanged = call not in ('before_val', 'after_val')
            if call == 'before_val_epoch':
                exchanged = hook not in waiting
            elif call == 'after_val_epoch':
                exchanged = hook in waiting
            if exchanged and isinstance(hook, EMAHook):
                hook.after_val_epoch(runner)
        return []
    later = [hook for hook in waiting[1:] if isinstance(hook, (EMAHook, ParamSchedulerHook))]
    statistics = _statistics(runner)
    if call == 'after_train_iter':
        for hook in later:
            hook.after_train_iter(runner, **arguments)
        loop._iter += 1
        return waiting
    if call == 'after_train_epoch' and is_by_epoch(loop):
        for hook in later:
            hook.after_train_epoch(runner)
        loop._epoch += 1
    elif in_step and statistics is not None and statistics not in waiting:
        statistics.restore()
    return []
