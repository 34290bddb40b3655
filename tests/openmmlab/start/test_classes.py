"""The classes of a checkpoint and of the data: names and order, asked of the data set itself."""

import pytest
import torch
from mmengine.config import Config

from mmpola.openmmlab.predict.predictor import detector_meta
from mmpola.openmmlab.start.classes import ClassesHook, SharedClassesHook, with_shared_rows
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ('classes', 'end'),
    [
        (SWAPPED, 'for circle, square, triangle, star, ring and 1 more'),
        (OTHERS, 'circle, square, triangle, star, ring, and anew for cross'),
        (('moon', 'sun', 'sky', 'sea', 'sand', 'rain'), 'start from the weights for these other'),
    ],
)
def test_a_new_run_starts_from_the_classes_that_it_shares(classes, end, run, monkeypatch):
    lines = []
    monkeypatch.setattr('mmpola.openmmlab.start.classes.info', lines.append)
    options = ('--cfg-options', f'load_from={run.path}', *QUICK)
    assert run('train', classes, *options) == (0, [])
    (line,) = lines
    assert line.startswith('load_from: ')
    assert end in line


class HeadOf(torch.nn.Module):
    """Last layers of a detector's box head and of a mask head, with a value for each row."""

    def __init__(self, classes, start):
        super().__init__()
        self.fc_cls = torch.nn.Linear(2, classes + 1)  # the background is last
        self.fc_reg = torch.nn.Linear(2, 4 * classes)
        self.conv_logits = torch.nn.Conv2d(2, classes, 1)
        self.fc_shared = torch.nn.Linear(2, 2)
        for parameter in self.parameters():
            rows = torch.arange(start, start + len(parameter), dtype=torch.float)
            parameter.data = rows.view(-1, *[1] * (parameter.ndim - 1)).expand_as(parameter).clone()


@pytest.fixture
def started():
    """A function that returns the rows of the biases of a new head for some classes."""

    def started(classes, known=('person', 'dog', 'cat'), weights=None):
        model = HeadOf(len(classes), 100)
        given = weights or HeadOf(len(known), 0).state_dict()
        checkpoint = TrainingCheckpoint(
            'a.pth', {'meta': {'dataset_meta': {'classes': known}}}, given
        )
        runner = RunnerOf(classes)
        runner.model = model
        runner.call_hook = lambda name, checkpoint: runner.called.append(checkpoint)
        runner.called = []
        SharedClassesHook(checkpoint).before_train(runner)
        (seen,) = runner.called
        assert torch.equal(seen['state_dict']['fc_cls.bias'], model.fc_cls.bias)
        return {name: layer.bias.tolist() for name, layer in model.named_children()}

    return started


def test_rows_of_shared_classes_are_found_by_name(started):
    rows = started(('cat', 'bird', 'person'))
    assert rows == {
        'fc_cls': [2, 101, 0, 3],  # 3: the background
        'fc_reg': [8, 9, 10, 11, 104, 105, 106, 107, 0, 1, 2, 3],
        'conv_logits': [2, 101, 0],
        'fc_shared': [100, 101],  # another hook loads it
    }


def test_a_box_layer_for_all_classes_is_the_start_of_each(started):
    weights = HeadOf(3, 0).state_dict()
    weights['fc_reg.weight'] = weights['fc_reg.weight'][:4]
    weights['fc_reg.bias'] = weights['fc_reg.bias'][:4]
    assert started(('cat', 'bird'), weights=weights)['fc_reg'] == [0, 1, 2, 3] * 2


def test_without_a_shared_class_tensors_of_the_same_shape_are_loaded(started):
    assert started(('bird', 'fish', 'frog'))['fc_cls'] == [0, 1, 2, 3]
    assert started(('bird', 'fish'))['fc_cls'] == [100, 101, 102]


def test_tensors_of_other_shapes_stay(started):
    own = torch.zeros(4, 2)
    names = ('a', 'b', 'c')
    assert with_shared_rows(own, torch.ones(4, 3), 1, names, names) is None
    assert with_shared_rows(own, torch.ones(3, 2), 1, names, names) is None  # no background
    assert with_shared_rows(own, torch.ones(4, 2), None, names, names) is None


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
