"""The classes of a checkpoint and of the data: names and order, asked of the data set itself."""

import pytest
import torch
from mmengine.config import Config

from mmpola.openmmlab.predict.predictor import detector_meta
from mmpola.openmmlab.run.train import ClassesHook
from mmpola.openmmlab.start.fit import TrainingCheckpoint, loads_classes
from tests.helpers.configs import STATE
from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
SWAPPED = ('circle', 'square', 'star', 'triangle', 'ring', 'cross')
OTHERS = ('circle', 'square', 'triangle', 'star', 'ring', 'moon')
QUICK = ('train_cfg.max_epochs=1', 'train_cfg.val_interval=2', 'train_dataloader.dataset.indices=2')


@pytest.fixture
def run(tiny_config, write_checkpoint, tmp_path, capsys):
    """A function that runs train or test with a checkpoint of these classes.

    It returns the exit status, and the lines of stdout and stderr that name the checkpoint.
    """
    path = tmp_path / 'start.pth'

    def run(script, classes, *arguments):
        meta = dict(STATE['meta'])
        if classes:
            meta['dataset_meta'] = {'classes': classes}
        write_checkpoint(tiny_config, path, **{**STATE, 'meta': meta})
        work = ('--work-dir', tmp_path / 'work')
        capsys.readouterr()
        status = run_script(script, tiny_config, *arguments, *work)
        captured = capsys.readouterr()
        return status, [line for line in captured.err.splitlines() if line.startswith('error: ')]

    run.path = path
    return run


def assert_refused(result, path, loader):
    status, (line,) = result
    assert status == 2
    assert line.startswith(
        f'error: {loader}.dataset: expected the classes of {path} in their order, '
        'star, triangle, ring, cross from label 2 on, got '
        'triangle, star, ring, cross; metainfo.classes'
    )


def test_classes_in_another_order_are_not_evaluated(run):
    assert_refused(run('test', SWAPPED, run.path), run.path, 'test_dataloader')


@pytest.mark.slow
@pytest.mark.parametrize('classes', [list(CLASSES), None])
def test_the_same_classes_or_none_are_evaluated(classes, run):
    assert run('test', classes, run.path) == (0, [])


def test_a_run_does_not_resume_with_classes_in_another_order(run):
    assert_refused(run('train', SWAPPED, '--resume', run.path), run.path, 'train_dataloader')


def test_a_new_run_does_not_start_from_a_head_for_another_order(run):
    options = ('--cfg-options', f'load_from={run.path}')
    assert_refused(run('train', SWAPPED, *options), run.path, 'train_dataloader')


@pytest.mark.slow
def test_a_new_run_starts_from_other_classes(run, monkeypatch):
    lines = []
    monkeypatch.setattr('mmpola.openmmlab.run.train.info', lines.append)
    options = ('--cfg-options', f'load_from={run.path}', *QUICK)
    assert run('train', OTHERS, *options) == (0, [])
    (line,) = lines
    assert 'moon from label 5 on, got cross; the heads start' in line


def test_predictions_have_the_names_of_the_checkpoint(tiny_config, capsys):
    cfg = Config.fromfile(tiny_config)
    content = {'meta': {'dataset_meta': {'classes': SWAPPED}}}
    checkpoint = TrainingCheckpoint('a.pth', content, {})
    assert detector_meta(cfg, checkpoint, {'classes': CLASSES})['classes'] == SWAPPED
    line = capsys.readouterr().out
    assert line.startswith('test_dataloader.dataset: expected the classes of a.pth in their order')
    detector_meta(cfg, checkpoint, {'classes': SWAPPED})
    assert capsys.readouterr().out == ''


class RunnerOf:
    """What the hook reads of a runner."""

    def __init__(self, classes):
        self.train_dataloader = self
        self.dataset = self
        self.metainfo = {'classes': classes}
        self.val_loop = None


def test_a_new_run_may_have_another_number_of_classes():
    hook = ClassesHook('a.pth', CLASSES, 'train_dataloader', 'others are taught')
    hook.before_run(RunnerOf(CLASSES[:3]))
    hook.before_run(RunnerOf(None))


def test_heads_that_predict_classes(tiny_config):
    model = Config.fromfile(tiny_config).model
    names = ['backbone.stem.weight', 'neck.fpn.weight', 'rpn_head.rpn_cls.weight']
    assert not loads_classes(names, model)
    assert loads_classes([*names, 'roi_head.bbox_head.fc_cls.weight'], model)
    classifier = {'type': 'mmpola.ImageClassifier', 'num_classes': 3}
    assert not loads_classes(names[:1], classifier)
    assert loads_classes(dict.fromkeys(['head.weight'], torch.ones(1)), classifier)
