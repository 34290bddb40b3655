"""The note about a warm-up that is not shorter than the run."""

import math

import pytest
from mmengine.config import Config

from mmpola.engine.config import apply_options
from mmpola.engine.warm_up import warm_up_note
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


MAIN = {'type': 'MultiStepLR', 'end': 12, 'milestones': [8, 11]}
LINEAR = {'type': 'LinearLR', 'start_factor': 0.001, 'by_epoch': False, 'begin': 0, 'end': 500}


def test_a_run_within_its_warm_up_names_the_option_that_ends_it_earlier():
    cfg = schedule(LINEAR, MAIN)
    note = warm_up_note(cfg, 45)
    assert note.startswith('param_scheduler.0: ')
    assert '276 steps' in note and '500 steps' in note
    assert '\n' not in note
    option = note.partition('--cfg-options ')[2]
    assert option == 'param_scheduler.0.end=27'
    apply_options(cfg, {'param_scheduler.0.end': 27})
    assert warm_up_note(cfg, 45) is None


@pytest.mark.parametrize(
    'kind', [{'type': 'mmdet.QuadraticWarmupLR'}, {'type': 'ConstantLR', 'factor': 0.1}]
)
def test_other_warm_ups(kind):
    assert 'param_scheduler.1.end=27' in warm_up_note(
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
def test_no_note(part, images):
    assert warm_up_note(schedule(part, MAIN), images) is None


def test_steps_are_those_of_a_process_and_a_full_batch_may_be_needed(monkeypatch):
    assert '264 steps' in warm_up_note(schedule(LINEAR, MAIN, drop_last=True), 45)
    monkeypatch.setenv('WORLD_SIZE', '2')
    cfg = schedule(LINEAR, MAIN)
    cfg.launcher = 'pytorch'
    assert '144 steps' in warm_up_note(cfg, 45)


@pytest.mark.parametrize(('end', 'option'), [(500, 'param_scheduler.0.end=50'), (600, None)])
def test_a_run_counted_in_steps(end, option):
    """The note about schedules of another length speaks of the second."""
    cfg = schedule({**LINEAR, 'end': end})
    cfg.train_cfg = {'max_iters': 500}
    note = warm_up_note(cfg, 45)
    assert note is None if option is None else note.endswith(option)


def test_the_script_counts_the_images_that_are_used(tiny_config, tmp_path, monkeypatch, capsys):
    """12 images, of which it takes 7, in 3 epochs of batches of two; the config's warm-up has 100 steps."""
    monkeypatch.setattr('mmpola.engine.train._run', lambda cfg: None)
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
