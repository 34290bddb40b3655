"""Advice on schedules that do not fit the run."""

import pytest
from mmengine.config import Config

from mmpola.openmmlab.run.advice import length_advice

LINEAR = {'type': 'LinearLR', 'by_epoch': False}
COSINE = {'type': 'CosineAnnealingLR'}


def advice(parts, steps=None, **settings):
    settings.setdefault('train_cfg', {'max_epochs': 20})
    return length_advice(Config({'param_scheduler': parts, **settings}), steps)


@pytest.mark.parametrize(
    ('part', 'problem'),
    [
        ({'type': 'PolyLR', 'end': 20}, None),
        ({'type': 'PolyLR'}, None),  # without an end it lasts as long as the run
        ({'type': 'PolyLR', 'end': 'zero'}, None),  # MMEngine refuses it
        ({'type': 'PolyLR', 'end': 40}, 'end=40'),
        ({**COSINE, 'begin': 4, 'end': 20, 'T_max': 16}, None),
        ({**COSINE, 'begin': 4, 'end': 20, 'T_max': 20}, None),  # does not reach zero, nearly
        ({**COSINE, 'begin': 4, 'end': 40, 'T_max': 36}, 'end=40, T_max=36'),
        ({**COSINE, 'T_max': 40}, 'T_max=40'),
        (
            {**COSINE, 'begin': 4, 'end': 20, 'T_max': 8},
            'T_max=8, after which the rate rises again until 20',
        ),
        ({**COSINE, 'T_max': 19}, 'T_max=19, after which the rate rises again until 20'),
        ({'type': 'mmpola.WarmupCosineLR', 'T_max': 15, 'end': 20}, None),  # a cool-down
        ({'type': 'mmpola.WarmupCosineLR', 'warmup': 20, 'T_max': 20}, 'warmup 20 never reached'),
        ({'type': 'MultiStepLR', 'end': 20, 'milestones': [16, 19]}, None),
        ({'type': 'MultiStepLR', 'milestones': [8, 20, 22]}, 'milestones 20, 22 never reached'),
        (
            {'type': 'MultiStepLR', 'begin': 5, 'milestones': [8, 16]},
            'milestones 16 never reached',
        ),
        ({'type': 'StepLR', 'step_size': 30}, 'step_size 30 never reached'),
        ({'type': 'ExponentialLR', 'begin': 20}, 'begin=20'),
        ({'type': 'LinearLR', 'end': 20}, 'end=20 of the warm-up'),
        ({'type': 'mmengine.LinearLR', 'begin': 10, 'end': 20}, None),  # no warm-up
        ({**LINEAR, 'end': 500}, None),  # counts steps, and the steps are not known
    ],
)
def test_numbers_of_a_schedule_that_do_not_fit_the_epochs(part, problem):
    expected = []
    if problem is not None:
        end = 'training ends at train_cfg.max_epochs=20'
        expected.append(f'param_scheduler.0: {problem}, but {end}; change them together')
    rest = {'type': 'ConstantLR', 'end': 20, 'begin': 1}  # so that the schedule has its end
    assert advice([part, rest]) == expected


def test_a_schedule_that_ends_before_the_run():
    parts = [{'type': 'LinearLR', 'end': 2}, {**LINEAR, 'end': 500}, {'type': 'PolyLR', 'end': 15}]
    for schedule in (parts, tuple(parts), parts[-1]):
        (line,) = advice(schedule)
        assert line.startswith('param_scheduler: ends at 15, but training ends at ')
    assert advice(None) == []


def test_a_run_by_steps():
    parts = [{**LINEAR, 'end': 4}, {**COSINE, 'by_epoch': False, 'begin': 4, 'T_max': 8}, COSINE]
    (line,) = advice(parts, train_cfg={'max_iters': 16})
    assert line.startswith('param_scheduler.1: T_max=8, after which the rate rises again until 16')
    assert line.endswith('train_cfg.max_iters=16; change them together')


@pytest.mark.parametrize(
    ('part', 'problem'),
    [
        ({**LINEAR, 'end': 500}, 'end=500 of the warm-up'),
        ({**LINEAR, 'end': 276}, 'end=276 of the warm-up'),
        ({**LINEAR, 'end': 275}, None),
        ({**LINEAR}, None),
        ({'type': 'PolyLR', 'by_epoch': False, 'end': 276}, None),
        ({'type': 'PolyLR', 'by_epoch': False, 'end': 200}, None),  # others may follow
        ({**COSINE, 'by_epoch': False, 'T_max': 90}, 'T_max=90, after which the rate rises again'),
        ({'type': 'LinearLR', 'end': 500}, None),  # counts epochs
    ],
)
def test_parts_that_count_steps_in_a_run_that_counts_epochs(part, problem):
    for parts in ([part], {'generator': [], 'critic': [part]}):
        lines = advice(parts, 276)
        assert len(lines) == (problem is not None)
        assert all(f': {problem}' in line and ' at step 276; ' in line for line in lines)


def test_a_resumed_run_keeps_its_schedule():
    (line,) = advice({'type': 'PolyLR', 'end': 40}, resume=True)
    assert line.endswith('; a resumed run keeps the schedule of its checkpoint')
