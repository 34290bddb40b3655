"""Mistakes of segmenters and classifiers, compared with mmseg's metric and with plain counts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData
from mmseg.evaluation import IoUMetric
from PIL import Image

from mmpola.openmmlab.results import mistakes, mistakes_picture, wrong_labels
from mmpola.openmmlab.results.mistakes import MistakesHook
from mmpola.openmmlab.results.wrong_labels import LabelledImage, labels_of

CLASSES = ('sky', 'road', 'tree')
COLOURS = ((0, 90, 200), (200, 200, 0), (0, 120, 0))
NAMED = {'classes': CLASSES, 'palette': COLOURS}


def maps(path, true, found):
    return BaseDataElement(
        metainfo={'img_path': path},
        gt_sem_seg=PixelData(data=torch.as_tensor(true)[None]),
        pred_sem_seg=PixelData(data=torch.as_tensor(found)[None]),
    )


def classified(path, true, scores):
    label = torch.tensor([true])  # mmpretrain's; ours is a number
    parts = {'gt_label': label if true else true, 'pred_score': torch.tensor(scores)}
    return BaseDataElement(metainfo={'img_path': path}, **parts)


def random_maps(number=5):
    random = np.random.default_rng(0)
    samples = []
    for index in range(number):
        true = random.integers(3, size=(30, 40))
        found = np.where(random.random((30, 40)) < 0.7, true, random.integers(3, size=(30, 40)))
        true[random.random((30, 40)) < 0.2] = 255
        samples.append(maps(f'{index}.png', true, found))
    return samples


def test_ious_are_those_of_mmseg():
    samples = random_maps()
    images = [labels_of(sample, 3, 255) for sample in samples]
    matrix = wrong_labels.matrix_of(images, 3)
    metric = IoUMetric()
    metric.dataset_meta = {'classes': CLASSES}
    metric.process({}, [sample.to_dict() for sample in samples])
    areas = [sum(parts).numpy() for parts in zip(*metric.results, strict=True)]
    assert matrix.diagonal().tolist() == areas[0].tolist()
    assert matrix.sum(0).tolist() == areas[2].tolist()
    assert matrix.sum(1).tolist() == areas[3].tolist()
    assert wrong_labels.ious(matrix) == pytest.approx(areas[0] / areas[1])


def test_the_confusion_counts_pixels():
    true = np.array([[0, 0, 1], [2, 255, 9]])
    found = np.array([[0, 2, 1], [1, 1, 1]])
    one = labels_of(maps('a.png', true, found), 3, 9)
    expected = np.zeros((3, 3), int)
    for a, b in ((0, 0), (0, 2), (1, 1), (2, 1)):
        expected[a, b] += 1
    assert wrong_labels.matrix_of([one], 3).tolist() == expected.tolist()
    assert one.maps.tolist() == [[[0, 0, 1], [2, -1, -1]], found.tolist()]
    assert one.badness == pytest.approx(1 - (1 / 2 + 1 / 2 + 0) / 3)
    one = labels_of(maps('a.png', true, found), 3, 0)  # a background that is not counted
    assert wrong_labels.matrix_of([one], 3).tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_the_iou_of_a_class_that_is_nowhere_is_unknown():
    values = wrong_labels.ious(np.diag([3, 0, 2]))
    assert np.isnan(values[1])
    assert values[[0, 2]].tolist() == [1, 1]
    nothing = labels_of(maps('a.png', np.full((2, 2), 255), np.zeros((2, 2), int)), 3, 255)
    assert nothing.badness == 0


def test_large_maps_are_kept_small():
    true = np.zeros((1000, 1300), int)
    one = labels_of(maps('a.png', true, true), 3, 255)
    assert one.maps.shape == (2, 250, 325)
    assert one.counts.tolist() == [1_300_000]


def test_only_the_worst_images_keep_their_maps():
    images = [labels_of(sample, 3, 255) for sample in random_maps(9)]
    worst = {one.path for one in sorted(images, key=lambda one: -one.badness)[:4]}
    for number in range(10):  # a batch at a time, with records of other kinds
        wrong_labels.drop_maps(['ValueError', *images[:number]], 4)
    assert {one.path for one in images if one.maps is not None} == worst


@pytest.mark.parametrize(
    ('true', 'scores', 'badness', 'called'),
    [(0, [0.7, 0.2, 0.1], 0, 0), (1, [0.7, 0.2, 0.1], 0.7, 0), (0, [0.1, 0.3, 0.6], 0.6, 2)],
)
def test_a_wrong_class_is_as_bad_as_it_is_probable(true, scores, badness, called):
    one = labels_of(classified('a.png', true, scores), 3, 255)
    assert one.badness == pytest.approx(badness)
    assert [one.true.tolist(), one.called.tolist(), one.counts.tolist()] == [[true], [called], [1]]
    assert one.unit == 'images'


@pytest.mark.parametrize(
    'parts',
    [
        {'pred_score': torch.ones(3)},
        {'pred_score': torch.ones(3), 'gt_label': torch.tensor([0, 2])},  # of several classes
        {'gt_label': 1},
        {'pred_sem_seg': PixelData(data=torch.zeros(1, 2, 2))},
    ],
)
def test_other_samples_are_left_out(parts):
    assert labels_of(BaseDataElement(**parts), 3, 255) is None


def test_the_line_names_the_three_most_frequent_mistakes():
    matrix = np.array([[50, 6, 0], [2, 40, 1], [1, 0, 0]])
    line = wrong_labels.cost_line(matrix, CLASSES, 'pixels')
    assert line == (
        '10.0 % of the pixels are wrong; of these sky called road 60 %, road called sky 20 %, '
        'road called tree 10 %'
    )
    line = wrong_labels.cost_line(np.diag([3, 3, 0]), CLASSES, 'images')
    assert line == '0.0 % of the images are wrong'


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(mistakes, 'info', lines.append)
    return lines


class Dataset(list):
    """A data set with `metainfo`."""


def drawn(tmp_path, samples, metainfo=NAMED):
    """Evaluate samples in batches of two, and return the hook."""
    dataset = Dataset(samples)
    dataset.metainfo = metainfo
    loader = SimpleNamespace(dataset=dataset)
    runner = SimpleNamespace(work_dir=str(tmp_path), test_dataloader=loader)
    hook = MistakesHook()
    hook.before_test_epoch(runner)
    for start in range(0, len(samples), 2):
        hook.after_test_iter(runner, 0, outputs=samples[start : start + 2])
    hook.after_test_epoch(runner, {})
    hook.after_run(runner)
    return hook


def has_colour(path, colour):
    pixels = np.asarray(Image.open(path)).astype(int)[2 * mistakes_picture.LEGEND :]
    return bool((np.abs(pixels - colour).max(2) < 25).sum() > 100)


def test_labels_predictions_and_wrong_pixels_are_drawn(said, tmp_path):
    path = tmp_path / 'photo.png'
    Image.new('RGB', (40, 30)).save(path)
    true = np.zeros((30, 40), int)
    found = true.copy()
    found[:10] = 2
    drawn(tmp_path, [maps(str(path), true, found)])
    for colour, is_there in zip(COLOURS, (True, False, True), strict=True):
        assert has_colour(tmp_path / 'mistakes.jpg', 0.6 * np.array(colour)) is is_there
    pixels = np.asarray(Image.open(tmp_path / 'mistakes.jpg')).astype(int)
    is_red = np.abs(pixels - (255, 0, 0)).max(2)[2 * mistakes_picture.LEGEND :] < 25
    rows = np.flatnonzero(is_red.sum(1) > 50)
    assert rows.max() / len(is_red) < 0.4  # above a caption
    assert said == [
        'costs most   33.3 % of the pixels are wrong; of these sky called tree 100 %; see '
        f'mistakes.jpg, confusion.png in {tmp_path}'
    ]


def test_the_worst_images_of_many_are_drawn(tmp_path, said, monkeypatch):
    samples = random_maps(15)
    captions = []
    sheet = mistakes_picture.sheet

    def noted(tiles, *rest):
        captions.extend(caption for _, caption in tiles)
        return sheet(tiles, *rest)

    monkeypatch.setattr(mistakes_picture, 'sheet', noted)
    hook = drawn(tmp_path, samples)
    order = sorted(hook.records, key=lambda one: -one.badness)
    assert [caption.split()[-1] for caption in captions] == [one.path for one in order[:12]]
    assert sum(one.maps is not None for one in hook.records) == 12
    assert captions[0].startswith(f'mean IoU {100 * (1 - order[0].badness):.1f}: ')


def test_the_most_confident_wrong_classes_are_drawn(tmp_path, said):
    path = tmp_path / 'photo.png'
    Image.new('RGB', (40, 30), (0, 0, 90)).save(path)
    samples = [classified(str(path), 1, [0.7, 0.2, 0.1]), classified('b.png', 1, [0.1, 0.9, 0.0])]
    drawn(tmp_path, samples)
    assert has_colour(tmp_path / 'mistakes.jpg', (0, 0, 90))
    for colour in ((230, 0, 140), (44, 160, 44)):
        assert has_colour(tmp_path / 'mistakes.jpg', colour)
    assert said[0].startswith('costs most   50.0 % of the images are wrong; of these road called')


def test_sequences_have_a_confusion_alone(tmp_path, said):
    """Of the Long Range Arena."""
    drawn(tmp_path, [BaseDataElement(gt_label=1, pred_score=torch.tensor([0.7, 0.2, 0.1]))])
    assert not (tmp_path / 'mistakes.jpg').exists()
    assert (tmp_path / 'confusion.png').exists()
    assert said[0].endswith(f'; see confusion.png in {tmp_path}')


@pytest.mark.parametrize('metainfo', [{'classes': None}, None])
def test_data_without_names_of_classes_are_left_out(metainfo, tmp_path, said):
    hook = drawn(tmp_path, [classified('a.png', 1, [0.7, 0.2, 0.1])], metainfo)
    assert hook.records == []
    assert said == []


def test_counts_of_images_are_added():
    one = LabelledImage('', 'images', np.array([1]), np.array([2]), np.array([1]), 0.5)
    assert wrong_labels.matrix_of([one, one], 3)[1].tolist() == [0, 0, 2]
