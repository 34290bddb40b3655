"""The pictures of training runs, and that they change nothing."""

import pytest
from PIL import Image

from mmpola.openmmlab.results.mistakes import CONFUSION, MISTAKES
from mmpola.openmmlab.screen import curves, first_batch, screen
from tests.helpers.processes import run_script
from tests.helpers.training import assert_same, saved

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs', 'drawn_curves')]

EACH_EPOCH = (
    'train_cfg.val_interval=1',
    'default_hooks.checkpoint.interval=1',
    'default_hooks.checkpoint.max_keep_ckpts=3',
)


def train(config, work, *options, arguments=()):
    command = (config, '--work-dir', work, *arguments, '--cfg-options', *EACH_EPOCH, *options)
    assert run_script('train', *command) == 0


@pytest.mark.parametrize('loop', ['mmpola.ExactEpochLoop', 'EpochBasedTrainLoop'])
def test_a_run_with_pictures_ends_with_the_same_bits(loop, tiny_config, tmp_path, monkeypatch):
    """MMEngine's own loop draws all random numbers in a row."""
    with tiny_config.open('a') as config:
        config.write(
            "checkpoint = dict(type='mmpola.AtomicCheckpointHook')\n"
            'default_hooks = dict(_delete_=True, checkpoint=checkpoint)\n'
        )
    options = (f'train_cfg.type={loop}', 'train_cfg.max_epochs=2')
    train(tiny_config, tmp_path / 'with', *options)
    monkeypatch.setattr(screen, 'draw', lambda runner: None)
    without = ('default_hooks.first_batch=None', 'default_hooks.mistakes=None')
    train(tiny_config, tmp_path / 'without', *options, *without)
    for name in (first_batch.FIRST_BATCH_FILE, curves.CURVES, CONFUSION, MISTAKES):
        assert (tmp_path / 'with' / name).exists()
        assert not (tmp_path / 'without' / name).exists()
    one, other = (saved(tmp_path / name / 'epoch_2.pth') for name in ('with', 'without'))
    assert_same(one, other)


def test_a_picture_that_fails_is_one_line(tiny_config, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise ValueError('no colours left')

    monkeypatch.setattr(first_batch, 'draw_batch', fail)
    monkeypatch.setattr(screen, 'draw_curves', fail)
    work = tmp_path / 'work'
    train(tiny_config, work, 'train_cfg.max_epochs=1', 'train_cfg.val_interval=2')
    shown = capsys.readouterr().out.splitlines()
    line = 'not drawn (ValueError: no colours left); training goes on'
    assert f'{work}/first_batch.jpg: {line}' in shown
    assert f'{work}/curves.png: {line}' in shown
    assert (work / 'epoch_1.pth').exists()


@pytest.mark.parametrize('picture', ['first_batch', 'curves'])
def test_a_killed_worker_is_no_picture_that_fails(picture, tiny_config, tmp_path, monkeypatch):
    """Torch's signal handler reports it in the middle of whatever runs."""

    def die(*_):
        raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')

    module, function = {
        'first_batch': (first_batch, 'draw_batch'),
        'curves': (screen, 'draw_curves'),
    }[picture]
    monkeypatch.setattr(module, function, die)
    with pytest.raises(RuntimeError, match='killed by signal'):
        train(tiny_config, tmp_path / 'work', 'train_cfg.max_epochs=1')


def test_curves_of_a_resumed_run_join_its_starts(tiny_config, tmp_path):
    """It resumes from the first of two epochs: the second one's steps must not count twice."""
    work = tmp_path / 'work'
    train(tiny_config, work, 'train_cfg.max_epochs=2')
    picture = work / 'first_batch.jpg'
    width, height = Image.open(picture).size
    assert width == 768 and height > 320  # two images, enlarged
    content = picture.read_bytes()
    arguments = ['--resume', work / 'epoch_1.pth', '--overwrite']
    train(tiny_config, work, 'train_cfg.max_epochs=3', arguments=arguments)
    lines = curves.read_scalars(work)
    assert [line['iter'] for line in lines if 'iter' in line] == list(range(1, 19))
    values = curves.series(lines)
    assert list(values['val/coco/bbox_mAP']) == [6, 12, 18]
    assert (work / 'curves.png').exists()
    assert picture.read_bytes() == content  # of the first batch of the run


def test_a_run_that_logs_elsewhere_has_no_curves(tiny_config, tmp_path, capsys):
    backend = 'visualizer.vis_backends.0.type=TensorboardVisBackend'
    train(tiny_config, tmp_path / 'work', backend, 'train_cfg.max_epochs=1')
    assert not (tmp_path / 'work' / 'curves.png').exists()
    assert 'curves.png' not in capsys.readouterr().out
