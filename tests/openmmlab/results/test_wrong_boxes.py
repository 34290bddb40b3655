"""Mistakes of detectors, compared with pycocotools and with counts in plain Python."""

import contextlib
import copy
import io

import numpy as np
import pytest
from mmengine.structures import BaseDataElement, InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import tensor

from mmpola.openmmlab.results import wrong_boxes
from mmpola.openmmlab.results.wrong_boxes import (
    BOTH,
    HIT,
    IGNORED,
    MISSED,
    NOTHING,
    TWICE,
    WRONG_CLASS,
    WRONG_PLACE,
)

CLASSES = 3
SIDE = 100
"""Of the square cells, each of which holds one object."""


class Images:
    """A data set as mmdet's: a list of objects for each image."""

    def __init__(self, *instances):
        self.infos = []
        for number, objects in enumerate(instances):
            self.infos.append({'img_path': f'{number}.jpg', 'instances': objects})

    def __len__(self):
        return len(self.infos)

    def get_data_info(self, index):
        return self.infos[index]


def thing(label, box, ignored=0):
    return {'bbox': box, 'bbox_label': label, 'ignore_flag': ignored}


def shifted(box, share):
    """Return a box of the same size whose IoU with the other is (1 - share) / (1 + share)."""
    x1, y1, x2, y2 = box
    move = share * (x2 - x1)
    return [x1 + move, y1, x2 + move, y2]


def random_case():
    """Return a data set of 40 images, and detections of each: (box, score, label).

    Objects stand in cells of their own, far apart: what mends a detection changes no other one.
    """
    random = np.random.default_rng(0)
    truths = []
    detections = []
    for _ in range(40):
        objects = []
        found = []
        for cell in range(6):
            x, y, side = 3 * SIDE * cell + random.uniform(0, 20), 10.0, random.uniform(40, 60)
            box = [x, y, x + side, y + side]
            label = int(random.integers(CLASSES))
            if random.random() < 0.8:
                objects.append(thing(label, box, int(random.random() < 0.15)))
            for _ in range(int(random.integers(4))):
                share = random.choice([0.0, 0.1, 0.2, 0.5, 0.5, 0.7, 0.95])
                called = label if random.random() < 0.5 else int(random.integers(CLASSES))
                found.append((shifted(box, share), round(random.uniform(0.05, 1), 4), called))
        truths.append(objects)
        detections.append(sorted(found, key=lambda one: -one[1]))
    return Images(*truths), detections


def records(detections):
    found = []
    for number, of_image in enumerate(detections):
        boxes = np.array([box for box, _, _ in of_image]).reshape(-1, 4)
        scores = np.array([score for _, score, _ in of_image])
        labels = np.array([label for _, _, label in of_image], dtype=int)
        found.append((f'{number}.jpg', boxes, scores, labels))
    return found


def coco_ap50(dataset, detections, left_out=()):
    """Return pycocotools' AP50 of each class; objects of `left_out` are not in the file."""
    annotations = []
    for number, info in enumerate(dataset.infos):
        for index, one in enumerate(info['instances']):
            if (number, index) not in left_out:
                annotations.append(annotation(number, one['bbox'], one['bbox_label']))
                annotations[-1].update(id=len(annotations), iscrowd=one['ignore_flag'])
    images = [{'id': number} for number in range(len(dataset))]
    categories = [{'id': label} for label in range(CLASSES)]
    results = []
    for number, of_image in enumerate(detections):
        for box, score, label in of_image:
            results.append({**annotation(number, box, label), 'score': score})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {'images': images, 'categories': categories, 'annotations': annotations}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), 'bbox')
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval['precision'][0, :, :, 0, -1].mean(0)


def annotation(image, box, label):
    x1, y1, x2, y2 = box
    area = (x2 - x1) * (y2 - y1)
    box = [x1, y1, x2 - x1, y2 - y1]
    return {'image_id': image, 'category_id': label, 'bbox': box, 'area': area}


def test_the_curves_are_those_of_pycocotools():
    dataset, detections = random_case()
    found = wrong_boxes.compare_boxes(records(detections), dataset)
    assert {*found.kinds} == {HIT, IGNORED, *wrong_boxes.WRONG}
    curves, _ = wrong_boxes.costs(found, CLASSES)
    assert curves.mean(1) == pytest.approx(coco_ap50(dataset, detections), abs=1e-9)


@pytest.mark.parametrize(
    ('label', 'box', 'kind'),
    [
        (0, [0, 0, 90, 100], HIT),
        (0, [0, 0, 100, 100], TWICE),
        (0, [0, 0, 40, 100], WRONG_PLACE),
        (0, [1050, 0, 1150, 100], WRONG_PLACE),  # and well on an object of another class
        (1, [0, 0, 80, 100], WRONG_CLASS),
        (1, [0, 0, 40, 100], BOTH),
        (1, [0, 0, 8, 100], NOTHING),
        (0, [0, 0, 8, 100], NOTHING),
        (0, [200, 200, 300, 300], NOTHING),
        (2, [520, 520, 560, 560], IGNORED),
        (2, [600, 600, 700, 700], HIT),
        (1, [520, 520, 560, 560], NOTHING),
    ],
)
def test_kinds_of_detections(label, box, kind):
    truth = [thing(0, [0, 0, 100, 100]), thing(2, [500, 500, 900, 900], ignored=1)]
    truth += [thing(0, [1000, 0, 1100, 100]), thing(1, [1060, 0, 1160, 100])]
    truth += [thing(2, [600, 600, 700, 700])]  # in the crowd
    best = ([0, 0, 100, 98], 0.9, 0)
    other = (box, 0.5, label)
    detections = [other] if kind == HIT else [best, other]
    found = wrong_boxes.compare_boxes(records([detections]), Images(truth))
    assert found.kinds[-1] == kind


def mended(kind, found, dataset, detections):
    """Mend detections of a kind in a copy, and return pycocotools' AP50."""
    changed = copy.deepcopy(detections)
    places = [
        (image, row) for image, of_image in enumerate(detections) for row in range(len(of_image))
    ]
    things = []
    for image, info in enumerate(dataset.infos):
        for index, one in enumerate(info['instances']):
            if not one['ignore_flag']:
                things.append((image, index))
    taken = {
        int(target) for target, own in zip(found.targets, found.kinds, strict=True) if own == HIT
    }
    if kind == MISSED:
        near = {int(target) for target in found.targets}
        missed = [place for number, place in enumerate(things) if number not in near]
        return coco_ap50(dataset, detections, missed)
    wrong = [index for index, own in enumerate(found.kinds) if own == kind]
    for index in sorted(wrong, key=lambda index: -found.scores[index]):
        image, row = places[index]
        target = int(found.targets[index])
        changed[image][row] = None
        if target >= 0 and target not in taken:
            taken.add(target)
            _, of_image = things[target]
            true = dataset.infos[image]['instances'][of_image]
            changed[image][row] = (true['bbox'], found.scores[index], true['bbox_label'])
    kept = [[one for one in of_image if one is not None] for of_image in changed]
    return coco_ap50(dataset, kept)


@pytest.mark.parametrize('kind', [*wrong_boxes.WRONG, MISSED])
def test_costs_are_what_pycocotools_gains_from_mended_files(kind):
    dataset, detections = random_case()
    found = wrong_boxes.compare_boxes(records(detections), dataset)
    _, growth = wrong_boxes.costs(found, CLASSES)
    expected = mended(kind, found, dataset, detections) - coco_ap50(dataset, detections)
    assert abs(expected).max() > 1e-4  # the tolerance is far below
    assert growth[kind] == pytest.approx(expected, abs=1e-9)


def test_a_class_that_is_never_found_costs_all_of_its_ap():
    truth = [thing(0, [0, 0, 100, 100]), thing(1, [200, 0, 300, 100])]
    found = wrong_boxes.compare_boxes(records([[([0, 0, 100, 100], 0.9, 0)]]), Images(truth))
    _, growth = wrong_boxes.costs(found, CLASSES)
    assert growth[MISSED][:2].tolist() == [0, 1]
    assert np.isnan(growth[MISSED][2])  # without objects


def test_the_best_score_has_the_best_f1():
    dataset, detections = random_case()
    found = wrong_boxes.compare_boxes(records(detections), dataset)
    objects = len(found.true_labels)

    def f1(score):
        kinds = [k for k, own in zip(found.kinds, found.scores, strict=True) if own >= score]
        hits = kinds.count(HIT)
        return 2 * hits / (len(kinds) - kinds.count(IGNORED) + objects)

    assert f1(wrong_boxes.best_score(found)) == max(f1(score) for score in found.scores)


@pytest.mark.parametrize('score', [0.0, 0.3, 0.7])
def test_the_confusion_is_counted_right(score):
    dataset, detections = random_case()
    found = wrong_boxes.compare_boxes(records(detections), dataset)
    matrix = wrong_boxes.confusion(found, wrong_boxes.partners(found, score), CLASSES)
    expected = np.zeros((CLASSES + 1, CLASSES + 1), int)
    for info, of_image in zip(dataset.infos, detections, strict=True):
        things = [one for one in info['instances'] if not one['ignore_flag']]
        crowds = [one for one in info['instances'] if one['ignore_flag']]
        rest = [one for one in of_image if one[1] >= score]
        for same in (True, False):
            for one in list(rest):
                box, _, label = one
                near = [x for x in things if iou(box, x['bbox']) >= 0.5]
                if near and (near[0]['bbox_label'] == label) == same:
                    expected[near[0]['bbox_label'], label] += 1
                    things.remove(near[0])
                    rest.remove(one)
        for box, _, label in rest:
            if not any(x['bbox_label'] == label and share(box, x['bbox']) >= 0.5 for x in crowds):
                expected[CLASSES, label] += 1
        for one in things:
            expected[one['bbox_label'], CLASSES] += 1
    assert matrix.tolist() == expected.tolist()
    assert matrix[:-1].sum() == len(found.true_labels)


def share(box, other):
    """Return the part of a box that lies in another one."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    own = (box[2] - box[0]) * (box[3] - box[1])
    return max(width, 0) * max(height, 0) / own


def iou(box, other):
    """Return the IoU of two boxes of one size."""
    return share(box, other) / (2 - share(box, other))


def test_detections_are_taken_from_the_samples_of_mmdet_best_first():
    instances = InstanceData(
        bboxes=tensor([[0.0, 0, 10, 10], [5, 5, 9, 9]]),
        scores=tensor([0.2, 0.7]),
        labels=tensor([2, 1]),
    )
    sample = BaseDataElement(metainfo={'img_path': 'a.jpg'}, pred_instances=instances)
    path, boxes, scores, labels = wrong_boxes.detections_of(sample)
    assert path == 'a.jpg'
    assert boxes.tolist() == [[5, 5, 9, 9], [0, 0, 10, 10]]
    assert scores.tolist() == pytest.approx([0.7, 0.2])
    assert labels.tolist() == [1, 2]


@pytest.mark.parametrize('part', ['metainfo', 'pred_instances', 'gt_label'])
def test_samples_without_boxes_are_left_out(part):
    boxes = InstanceData(bboxes=tensor([[0.0, 0, 10, 10]]), scores=tensor([0.2]))
    parts = {'metainfo': {'img_path': 'a.jpg'}, 'pred_instances': boxes}
    parts.pop(part, None)
    if part == 'gt_label':
        parts = {'metainfo': {'img_path': 'a.jpg'}, 'gt_label': 3}
    assert wrong_boxes.detections_of(BaseDataElement(**parts)) is None


def test_the_line_names_the_most_expensive_mistakes_first():
    matrix = np.array([[5, 2, 9], [1, 5, 9], [9, 9, 0]])
    classes = ('cat', 'dog')
    growth = {MISSED: np.array([0.02, 0.04]), NOTHING: np.array([0.0, 0.0008])}
    growth[WRONG_CLASS] = np.array([0.1, np.nan])
    line = wrong_boxes.cost_line(31.04, growth, matrix, classes)
    assert line == (
        'of 31.0 missing points of AP50: wrong class 10.0 (most often cat called dog), missed 3.0'
    )
    growth[WRONG_CLASS] = np.array([0.01, 0.0])
    line = wrong_boxes.cost_line(31.04, growth, matrix, classes)
    assert line.endswith(': missed 3.0 (most of it dog), wrong class 0.5')
