"""Advice on schedules that do not fit the run."""

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmpola.engine.advice import counting_advice, length_advice, warm_up_advice


@pytest.mark.parametrize(
    ('part', 'options'),
    [
        ({'type': 'PolyLR', 'end': 40}, ['end=20']),
        (
            {'type': 'CosineAnnealingLR', 'begin': 4, 'end': 40, 'T_max': 36},
            ['begin=2', 'end=20', 'T_max=18'],
        ),
        (
            {'type': 'MultiStepLR', 'end': 40, 'milestones': [20, 36]},
            ['end=20', 'milestones=[10,18]'],
        ),
        (
            {'type': 'mmpola.WarmupCosineLR', 'warmup': 4, 'end': 40, 'T_max': 40},
            ['warmup=2', 'end=20', 'T_max=20'],
        ),
    ],
)
def test_a_shorter_run_names_the_options_that_its_schedule_needs(part, options):
    warm_ups = [{'type': 'LinearLR', 'end': 2}, {'type': 'LinearLR', 'end': 500, 'by_epoch': False}]
    cfg = Config({'train_cfg': {'max_epochs': 20}, 'param_scheduler': [part, *warm_ups]})
    advice = length_advice(cfg)
    assert 'param_scheduler.1.end=1' in advice
    assert 'param_scheduler.2' not in advice  # counted in steps
    for option in options:
        assert f'param_scheduler.0.{option}' in advice
    given = advice.partition('--cfg-options ')[2].replace('"', '').split()
    for option in given:
        key, _, value = option.partition('=')
        cfg.merge_from_dict({key: eval(value)})
    assert length_advice(cfg) is None


@pytest.mark.parametrize(
    ('epochs', 'options'), [(2, ['0.end=1', '1.begin=1', '1.end=2', '1.T_max=1']), (1, [])]
)
def test_a_very_short_run_gets_a_schedule_that_can_be_built_or_none(epochs, options):
    parts = [
        {'type': 'LinearLR', 'end': 5},
        {'type': 'CosineAnnealingLR', 'begin': 5, 'end': 30, 'T_max': 25},
    ]
    advice = length_advice(Config({'train_cfg': {'max_epochs': epochs}, 'param_scheduler': parts}))
    assert advice.partition('--cfg-options ')[2].split() == [
        f'param_scheduler.{option}' for option in options
    ]
    assert ('too short' in advice) == (not options)


def test_a_resumed_run_is_named_no_options_that_have_no_effect():
    part = {'type': 'PolyLR', 'end': 40}
    cfg = Config({'train_cfg': {'max_epochs': 50}, 'param_scheduler': part, 'resume': True})
    advice = length_advice(cfg)
    assert advice.endswith('a resumed run keeps the schedule of its checkpoint')


def test_a_part_without_an_end_lasts_as_long_as_the_run():
    parts = [{'type': 'LinearLR', 'end': 20}, {'type': 'CosineAnnealingLR', 'begin': 20}]
    cfg = Config({'train_cfg': {'max_epochs': 300}, 'param_scheduler': parts})
    assert length_advice(cfg) is None


def test_a_schedule_of_one_part_has_no_number():
    cfg = Config({'train_cfg': {'max_epochs': 20}, 'param_scheduler': {'type': 'A', 'end': 40}})
    assert length_advice(cfg).endswith('--cfg-options param_scheduler.end=20')


@pytest.mark.parametrize(
    ('scheduler', 'steps', 'warns'),
    [
        ({'type': 'LinearLR', 'end': 500}, 276, True),
        ({'type': 'LinearLR', 'end': 275}, 276, False),
        ({'type': 'ConstantLR', 'end': 276}, 276, True),
        ({'type': 'LinearLR', 'begin': 400, 'end': 500}, 276, False),  # no warm-up
        ({'type': 'MultiStepLR', 'end': 500, 'milestones': [400]}, 276, False),
        ({'type': 'LinearLR'}, 276, False),  # without an end
        ({'type': 'LinearLR', 'end': 12, 'by_epoch': True}, 6, False),
    ],
)
def test_a_warm_up_that_is_longer_than_the_run(scheduler, steps, warns):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    built = PARAM_SCHEDULERS.build(
        {'by_epoch': False, **scheduler}, default_args={'optimizer': optimizer}
    )
    for schedulers in ([built], {'generator': [], 'critic': [built]}):
        assert (warm_up_advice(schedulers, steps) is not None) == warns
    assert warm_up_advice(None, steps) is None


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
    lines = counting_advice(running, CheckpointHook(**hook), [built])
    assert [line.partition(':')[0] for line in lines] == subjects
