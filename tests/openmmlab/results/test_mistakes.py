"""The hook that draws mistakes, and what its pictures and its line say."""

from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.structures import BaseDataElement, InstanceData
from PIL import Image
from torch import tensor

from mmpola.openmmlab.results import mistakes, mistakes_picture
from mmpola.openmmlab.results.mistakes import MistakesHook


class Dataset(list):
    """A data set as mmdet's: a dict for each image."""

    metainfo = {'classes': ('cat', 'dog')}  # noqa: RUF012

    def get_data_info(self, index):
        return self[index]


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(mistakes, 'info', lines.append)
    return lines


def detected(path, boxes, scores, labels):
    found = InstanceData(bboxes=tensor(boxes), scores=tensor(scores), labels=tensor(labels))
    return BaseDataElement(metainfo={'img_path': path}, pred_instances=found)


@pytest.fixture
def runner(tmp_path):
    """A run on a grey photograph with two cats and a dog."""
    path = str(tmp_path / 'photo.png')
    Image.new('RGB', (300, 200), (128, 128, 128)).save(path)
    boxes = {(10, 10, 60, 60): 0, (100, 10, 150, 60): 0, (200, 10, 250, 60): 1}
    instances = [{'bbox': box, 'bbox_label': label} for box, label in boxes.items()]
    loader = SimpleNamespace(dataset=Dataset([{'img_path': path, 'instances': instances}]))
    loaders = {'val_dataloader': loader, 'test_dataloader': loader}
    return SimpleNamespace(work_dir=str(tmp_path), **loaders, iter=1200, max_iters=1200)


def evaluate(hook, runner, outputs, mode='val'):
    getattr(hook, f'before_{mode}_epoch')(runner)
    getattr(hook, f'after_{mode}_iter')(runner, 0, outputs=outputs)
    getattr(hook, f'after_{mode}_epoch')(runner, {})


CAT_IS_DOG = ([[10.0, 10, 60, 60], [100, 10, 150, 60], [20, 100, 60, 150]], [0.7, 0.9, 0.8])


def colours(path):
    """Return the colours of boxes that a picture has below its legend."""
    pixels = np.asarray(Image.open(path)).astype(int)[2 * mistakes_picture.LEGEND :]
    found = set()
    for colour in mistakes_picture.BOX_LEGEND:
        rgb = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        if (np.abs(pixels - rgb).max(2) < 40).sum() > 100:
            found.add(colour)
    return found


def test_boxes_of_each_kind_are_drawn(runner, said, tmp_path):
    hook = MistakesHook()
    evaluate(hook, runner, [detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])])
    assert not (tmp_path / 'mistakes.jpg').exists()  # training goes on
    hook.after_run(runner)
    assert colours(tmp_path / 'mistakes.jpg') == {*mistakes_picture.BOX_LEGEND}
    assert (tmp_path / 'confusion.png').read_bytes().startswith(b'\x89PNG')
    (line,) = said
    costs = 'missed 50.0 (most of it dog), wrong class 29.1, background 12.6'
    text = f'of 87.4 missing points of AP50: {costs}'
    assert line == f'costs most   {text}; see mistakes.jpg, confusion.png in {tmp_path}'


def test_without_mistakes_an_earlier_picture_is_removed(runner, said, tmp_path):
    (tmp_path / 'mistakes.jpg').write_bytes(b'of an earlier run')
    boxes = [[10.0, 10, 60, 60], [100, 10, 150, 60], [200, 10, 250, 60]]
    right = detected(str(tmp_path / 'photo.png'), boxes, [0.9, 0.8, 0.7], [0, 0, 1])
    hook = MistakesHook()
    evaluate(hook, runner, [right], 'test')
    hook.after_run(runner)
    assert not (tmp_path / 'mistakes.jpg').exists()
    text = 'of 0.0 missing points of AP50: none of one kind'
    assert said == [f'costs most   {text}; see confusion.png in {tmp_path}']


def test_the_newest_evaluation_is_drawn(runner, said, tmp_path):
    hook = MistakesHook()
    wrong = detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])
    evaluate(hook, runner, [wrong])
    assert hook.title == 'validation data after step 1,200'
    evaluate(hook, runner, [detected('of the test', *CAT_IS_DOG, [0, 1, 0])], 'test')
    assert [path for path, *_ in hook.records] == ['of the test']
    assert hook.title == 'test data'


def test_validations_before_the_last_step_keep_nothing(runner, said, tmp_path):
    hook = MistakesHook()
    runner.iter = 1100
    evaluate(hook, runner, [detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])])
    assert hook.records == []
    hook.after_run(runner)
    assert said == []
    assert not (tmp_path / 'confusion.png').exists()


def test_an_image_of_an_unknown_format_is_grey(runner, said, tmp_path):
    path = tmp_path / 'photo.png'
    path.write_bytes(b'channels of a satellite')
    hook = MistakesHook()
    evaluate(hook, runner, [detected(str(path), *CAT_IS_DOG, [0, 1, 0])])
    hook.after_run(runner)
    assert colours(tmp_path / 'mistakes.jpg') == {*mistakes_picture.BOX_LEGEND}


@pytest.mark.parametrize('outputs', [[BaseDataElement(gt_text='no image')], []])
def test_nothing_is_drawn_of_other_predictions(outputs, runner, said, tmp_path):
    hook = MistakesHook()
    evaluate(hook, runner, outputs)
    hook.after_run(runner)
    assert said == []
    assert not (tmp_path / 'confusion.png').exists()


def test_nothing_is_drawn_of_data_without_annotations(runner, said, tmp_path):
    runner.val_dataloader.dataset[0]['instances'] = []
    hook = MistakesHook()
    evaluate(hook, runner, [detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])])
    hook.after_run(runner)
    assert said == []
    assert not (tmp_path / 'confusion.png').exists()


@pytest.mark.parametrize('place', ['in a batch', 'at the end'])
def test_an_error_is_a_line(place, runner, said, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError('no colours left')

    name = {'in a batch': 'detections_of', 'at the end': 'compare_boxes'}[place]
    monkeypatch.setattr(mistakes.wrong_boxes, name, fail)
    hook = MistakesHook()
    evaluate(hook, runner, [detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])])
    hook.after_run(runner)
    assert said == [f'{tmp_path}/mistakes.jpg: not drawn (ValueError: no colours left)']


@pytest.mark.parametrize('name', ['detections_of', 'compare_boxes'])
def test_a_killed_worker_is_no_drawing_that_fails(name, runner, said, tmp_path, monkeypatch):
    """Torch's signal handler reports it in the middle of whatever runs."""

    def die(*_):
        raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')

    monkeypatch.setattr(mistakes.wrong_boxes, name, die)
    hook = MistakesHook()
    sample = detected(str(tmp_path / 'photo.png'), *CAT_IS_DOG, [0, 1, 0])
    if name == 'compare_boxes':
        evaluate(hook, runner, [sample])
    with pytest.raises(RuntimeError, match='killed by signal'):
        hook.after_run(runner) if name == 'compare_boxes' else evaluate(hook, runner, [sample])


@pytest.mark.parametrize('rank', [0, 1])
def test_the_first_process_draws_what_all_have_found(rank, runner, said, tmp_path, monkeypatch):
    """The second process evaluates the first image once more, as it would have less to do."""
    paths = [f'{number}.jpg' for number in range(3)]
    infos = runner.val_dataloader.dataset
    infos[:] = [{**infos[0], 'img_path': path} for path in paths]
    samples = [detected(path, *CAT_IS_DOG, [0, 1, 0]) for path in paths]
    parts = [[samples[0], samples[2]], [samples[1], samples[0]]]
    records = [[mistakes.wrong_boxes.detections_of(x) for x in part] for part in parts]
    monkeypatch.setattr('mmengine.dist.dist.get_dist_info', lambda group=None: (rank, 2))
    monkeypatch.setattr('mmengine.dist.dist.all_gather_object', lambda own, group=None: records)
    hook = MistakesHook()
    evaluate(hook, runner, parts[rank])
    assert [path for path, *_ in hook.records] == (paths if rank == 0 else [])
    hook.after_run(runner)
    assert (tmp_path / 'confusion.png').exists() is (rank == 0)


def test_of_many_classes_the_most_confused_ones_are_drawn():
    matrix = np.eye(40, dtype=int) * 10
    matrix[3, 17] = 8
    names = [f'class {number}' for number in range(40)]
    figure = mistakes_picture.draw_confusion(matrix, names, 'test data')
    (axes,) = figure.axes
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert len(shown) == mistakes_picture.MOST_CLASSES
    assert {'class 3', 'class 17'} <= {*shown}
    assert '8' in [text.get_text() for text in axes.texts]
    assert figure.get_suptitle() == 'test data; the 25 of 40 rows with the most mistakes'


@pytest.mark.parametrize(
    ('factor', 'texts', 'title'),
    [
        (1, {'1,500', '500', '8'}, 'maps'),
        (1e3, {'75.0', '25.0', '100.0'}, 'maps, in % of each row'),
    ],
)
def test_large_numbers_are_shares(factor, texts, title):
    matrix = (np.array([[1500, 500], [0, 8]]) * factor).astype(int)
    figure = mistakes_picture.draw_confusion(matrix, ['cat', 'dog'], 'maps')
    assert {text.get_text() for text in figure.axes[0].texts} == texts
    assert figure.get_suptitle() == title


def test_the_curves_of_the_worst_classes_are_drawn():
    curves = np.linspace(0.2, 0.9, 12)[:, None].repeat(101, 1)
    curves[4] = np.nan  # without objects
    names = [*(f'class {number}' for number in range(12)), 'background']
    figure = mistakes_picture.draw_confusion(np.eye(13, dtype=int), names, '', curves)
    legend = figure.axes[1].get_legend()
    assert legend.get_title().get_text() == 'AP50, the 10 worst of 11 classes'
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[0] == 'class 0 20.0'
    assert texts[-2:] == ['class 10 83.6', 'all classes 55.9']
