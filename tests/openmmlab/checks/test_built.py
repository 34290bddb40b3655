"""Checks of a run that is built: what counts otherwise than its loop."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import CheckpointHook
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmpola.openmmlab.checks.built import counting
from mmpola.openmmlab.checks.table import Built


@pytest.mark.parametrize(
    ('loop', 'hook', 'scheduler', 'subjects'),
    [
        ('epochs', {}, {}, []),
        ('epochs', {'by_epoch': False, 'interval': 24}, {'by_epoch': False}, []),
        ('epochs', {'by_epoch': False, 'interval': 25}, {}, ['default_hooks.checkpoint']),
        ('steps', {}, {'by_epoch': False}, ['default_hooks.checkpoint']),
        ('steps', {'by_epoch': False}, {}, ['param_scheduler']),
        ('steps', {'by_epoch': False}, {'type': 'ReduceOnPlateauLR', 'monitor': 'loss'}, []),
    ],
)
def test_hooks_and_schedules_that_count_otherwise_than_the_loop(loop, hook, scheduler, subjects):
    """They save, or change, nothing before the end of the run."""
    loop_class = EpochBasedTrainLoop if loop == 'epochs' else IterBasedTrainLoop
    running = loop_class.__new__(loop_class)
    running._max_iters = 24
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    built = PARAM_SCHEDULERS.build(
        {'type': 'ConstantLR', **scheduler}, default_args={'optimizer': optimizer}
    )
    runner = SimpleNamespace(
        train_loop=running, hooks=[CheckpointHook(**hook)], param_schedulers=[built]
    )
    lines = counting(Built(runner, 'val'))
    assert [line.partition(':')[0] for line in lines] == subjects
