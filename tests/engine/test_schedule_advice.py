"""Advice on schedules that do not fit the length of the run."""

import math
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from mmpola.engine.schedule_advice import length_advice, schedule_advice, warm_up_advice
from tests.helpers.processes import run_script


def schedule(*parts, epochs=12, batch=2, **loader):
    """A config of `epochs` on batches of `batch` images."""
    return Config(
        {
            'train_cfg': {'max_epochs': epochs},
            'train_dataloader': {'batch_size': batch, **loader},
            'param_scheduler': list(parts),
        }
    )


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


def test_a_schedule_of_one_part_has_no_number():
    cfg = Config({'train_cfg': {'max_epochs': 20}, 'param_scheduler': {'type': 'A', 'end': 40}})
    assert length_advice(cfg).endswith('--cfg-options param_scheduler.end=20')


MAIN = {'type': 'MultiStepLR', 'end': 12, 'milestones': [8, 11]}
LINEAR = {'type': 'LinearLR', 'start_factor': 0.001, 'by_epoch': False, 'begin': 0, 'end': 500}


def test_a_run_within_its_warm_up_names_the_option_that_ends_it_earlier():
    cfg = schedule(LINEAR, MAIN)
    advice = warm_up_advice(cfg, 45)
    assert advice.startswith('param_scheduler.0: ')
    assert '276 steps' in advice and '500 steps' in advice
    assert '\n' not in advice
    option = advice.partition('--cfg-options ')[2]
    assert option == 'param_scheduler.0.end=27'
    assert schedule_advice(cfg, 45) == [advice]
    cfg.merge_from_dict({'param_scheduler.0.end': 27})
    assert schedule_advice(cfg, 45) == []


@pytest.mark.parametrize(
    'kind', [{'type': 'mmdet.QuadraticWarmupLR'}, {'type': 'ConstantLR', 'factor': 0.1}]
)
def test_other_warm_ups(kind):
    assert 'param_scheduler.1.end=27' in warm_up_advice(
        schedule(MAIN, {**kind, 'by_epoch': False, 'end': 276}), 45
    )


@pytest.mark.parametrize(
    ('part', 'images'),
    [
        ({**LINEAR, 'end': 275}, 45),  # one step shorter
        (LINEAR, math.inf),  # unknown data
        ({**LINEAR, 'start_factor': 1.0, 'end_factor': 0.1}, 45),  # falls
        ({**LINEAR, 'begin': 400}, 45),  # starts later
        ({'type': 'MultiStepLR', 'by_epoch': False, 'end': 500, 'milestones': [400]}, 45),
        ({'type': 'LinearLR', 'end': 12}, 45),  # in epochs
    ],
)
def test_no_advice(part, images):
    assert warm_up_advice(schedule(part, MAIN), images) is None


def test_steps_are_those_of_a_process_and_a_full_batch_may_be_needed(monkeypatch):
    assert '264 steps' in warm_up_advice(schedule(LINEAR, MAIN, drop_last=True), 45)
    monkeypatch.setenv('WORLD_SIZE', '2')
    cfg = schedule(LINEAR, MAIN)
    cfg.launcher = 'pytorch'
    assert '144 steps' in warm_up_advice(cfg, 45)


@pytest.mark.parametrize(('end', 'option'), [(500, 'param_scheduler.0.end=50'), (600, None)])
def test_a_run_counted_in_steps(end, option):
    """The advice on the length of the schedule speaks of the second."""
    cfg = schedule({**LINEAR, 'end': end})
    cfg.train_cfg = {'max_iters': 500}
    advice = warm_up_advice(cfg, 45)
    assert advice is None if option is None else advice.endswith(option)


def test_the_script_counts_the_images_that_are_used(tiny_config, tmp_path, monkeypatch, capsys):
    """3 epochs of 7 of the 12 images, in batches of two; the warm-up has 100 steps."""
    runner = SimpleNamespace(train=lambda: None)
    monkeypatch.setattr('mmpola.engine.train.build_runner', lambda *_: runner)
    options = (
        'train_dataloader.dataset.indices=7',
        'param_scheduler.1.end=3',
        'param_scheduler.1.T_max=3',
    )
    assert (
        run_script('train', tiny_config, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
        == 0
    )
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if 'warm-up' in line)
    assert '12 steps' in line
    assert line.endswith('--cfg-options param_scheduler.0.end=1')
    options = (*options, 'param_scheduler.0.end=1')
    assert (
        run_script('train', tiny_config, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
        == 0
    )
    assert 'warm-up' not in capsys.readouterr().out
