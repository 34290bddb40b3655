"""The cosine with a warm-up that replaces its beginning."""

import math

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS, build_scheduler_from_cfg
from timm.scheduler.cosine_lr import CosineLRScheduler

SCHEDULE = {
    'type': 'mmpola.WarmupCosineLR',
    'warmup': 2,
    'T_max': 6,
    'end': 8,
    'start_factor': 0.01,
    'eta_min_ratio': 0.02,
}


def optimizer_with(*rates):
    return torch.optim.SGD(
        [{'params': [torch.zeros(1, requires_grad=True)], 'lr': rate} for rate in rates]
    )


def rates_of(schedule, optimizer, steps):
    rates = []
    for _ in range(steps):
        rates.append([group['lr'] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return rates


def test_every_step_has_timms_rate():
    optimizer = optimizer_with(0.5)
    arguments = {**SCHEDULE, 'by_epoch': True, 'convert_to_iter_based': True}
    schedule = build_scheduler_from_cfg(
        arguments, PARAM_SCHEDULERS, {'optimizer': optimizer, 'epoch_length': 5}
    )
    timms = CosineLRScheduler(
        optimizer_with(0.5),
        t_initial=30,
        lr_min=0.01,
        warmup_t=10,
        warmup_lr_init=0.005,
        t_in_epochs=False,
    )
    expected = [timms._get_lr(step) for step in range(40)]
    assert rates_of(schedule, optimizer, 40) == [pytest.approx(rate) for rate in expected]


def test_rates_of_groups_keep_their_proportion_and_a_resumed_schedule_continues():
    optimizer = optimizer_with(1.0, 0.1)
    schedule = build_scheduler_from_cfg(
        {**SCHEDULE, 'by_epoch': True}, PARAM_SCHEDULERS, {'optimizer': optimizer}
    )
    rates = rates_of(schedule, optimizer, 3)
    assert rates[2] == pytest.approx(
        [0.02 + 0.98 * (1 + math.cos(math.pi / 3)) / 2, 0.1 * rates[2][0]]
    )

    again = optimizer_with(1.0, 0.1)
    resumed = build_scheduler_from_cfg(
        {**SCHEDULE, 'by_epoch': True}, PARAM_SCHEDULERS, {'optimizer': again}
    )
    resumed.load_state_dict(schedule.state_dict())
    again.load_state_dict(optimizer.state_dict())
    assert rates_of(resumed, again, 5) == rates_of(schedule, optimizer, 5)


@pytest.mark.parametrize('warmup', [-1, 6, 7])
def test_a_warmup_outside_of_the_cosine_is_refused(warmup):
    arguments = {**SCHEDULE, 'warmup': warmup}
    with pytest.raises(ValueError, match=f'warmup: .*T_max=6.* got {warmup}'):
        build_scheduler_from_cfg(arguments, PARAM_SCHEDULERS, {'optimizer': optimizer_with(1.0)})
