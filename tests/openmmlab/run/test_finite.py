"""When a run stops whose loss or weights are NaN or infinite."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import LoggerHook
from mmengine.logging import MessageHub

from mmpola.openmmlab.run.finite import FiniteLossHook, NonFiniteError, refuse_non_finite

NAN = float('nan')
INF = float('inf')


@pytest.mark.parametrize(
    ('losses', 'weight', 'interval', 'stops_at'),
    [
        (
            [1, NAN, 2, NAN, NAN, 3],
            0.0,
            1,
            None,
        ),  # steps that GradScaler skipped: the weights are finite
        ([INF, INF, 1], 0.0, 1, None),  # GradScaler starts with a scale that is too large
        ([1, NAN, NAN, NAN], NAN, 2, 2),
        ([1, 2, NAN, NAN], INF, 3, 3),
        ([1, 2], NAN, 1, None),  # the next loss will show it
    ],
)
def test_when_it_stops(losses, weight, interval, stops_at):
    hook = FiniteLossHook()
    hub = MessageHub(f'losses{id(losses)}')
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, weight)
    runner = SimpleNamespace(hooks=[LoggerHook(interval=interval)], model=model, message_hub=hub)
    hook.before_train(runner)
    stopped = None
    for runner.iter, loss in enumerate(losses):
        hub.update_info('iter', runner.iter)
        hub.update_scalar('train/loss', loss)
        try:
            hook.after_train_iter(runner, runner.iter)
        except NonFiniteError:
            stopped = runner.iter + 1
            break
    assert stopped == stops_at


def test_a_buffer_may_be_infinite_but_not_nan():
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer('mask', torch.full((2,), -INF))
    runner = SimpleNamespace(hooks=[], model=model, iter=3)
    refuse_non_finite(runner)
    model.running_mean[0] = NAN
    with pytest.raises(NonFiniteError, match='running_mean'):
        refuse_non_finite(runner)
