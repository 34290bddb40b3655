"""Metrics of single classes, of real metrics of mmdet and mmseg."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.evaluator import Evaluator
from mmseg.evaluation import IoUMetric

from mmpola.openmmlab.results.metrics import add_classes, log_prints, write_apart


def maps(values):
    return {'data': torch.tensor(values)}


def evaluated(metric, classes):
    """Evaluate two label maps of one row with a metric of a validation loop."""
    evaluator = Evaluator([metric])
    evaluator.dataset_meta = {'classes': classes}
    add_classes(SimpleNamespace(evaluator=evaluator), {'type': 'IoUMetric'})
    for truth, found in ([[0, 0, 1, 255]], [[0, 1, 1, 1]]), ([[1, 1, 1, 1]], [[1, 1, 1, 1]]):
        sample = {'gt_sem_seg': maps(truth), 'pred_sem_seg': maps(found)}
        evaluator.process([sample])
    return evaluator.evaluate(2)


def test_the_iou_of_each_class_is_returned():
    found = evaluated(IoUMetric(iou_metrics=['mIoU']), ('road', 'a car', 'absent'))
    assert math.isnan(found.pop('IoU.absent'))
    assert found.pop('IoU.road') == 50.0
    assert found.pop('IoU.a car') == 83.33
    assert list(found) == ['aAcc', 'mIoU', 'mAcc']
    assert found['mIoU'] == 66.67


def test_other_metrics_of_label_maps_stay():
    found = evaluated(IoUMetric(iou_metrics=['mDice']), ('road', 'car'))
    assert list(found) == ['aAcc', 'mDice', 'mAcc']


def test_many_classes_are_not_returned():
    classes = [f'class{number}' for number in range(21)]
    assert list(evaluated(IoUMetric(), classes)) == ['aAcc', 'mIoU', 'mAcc']


@pytest.mark.parametrize(
    ('config', 'classes', 'expected'),
    [
        ({'type': 'CocoMetric'}, ('cat',), True),
        ([{'type': 'CocoMetric', 'classwise': False}], ('cat',), False),
        ({'type': 'CocoMetric'}, ('cat',) * 21, False),
    ],
)
def test_ap_of_each_class_is_computed_unless_the_config_says_otherwise(config, classes, expected):
    evaluator = Evaluator([CocoMetric()])
    evaluator.dataset_meta = {'classes': classes}
    add_classes(SimpleNamespace(evaluator=evaluator), config)
    assert evaluator.metrics[0].classwise is expected


def evaluated_boxes(tmp_path, metric):
    """Evaluate an image whose classes have the ids 7 and 3: one of three cats is found, no dog."""
    boxes = [[0, 0, 20, 20], [30, 0, 20, 20], [60, 0, 20, 20], [0, 50, 20, 20]]
    annotations = []
    for number, (box, category) in enumerate(zip(boxes, (7, 7, 7, 3), strict=True), 1):
        x, y, side, _ = box
        outline = [x, y, x + side, y, x + side, y + side, x, y + side]
        shape = {'bbox': box, 'area': 400, 'iscrowd': 0, 'segmentation': [outline]}
        annotations.append({'id': number, 'image_id': 1, 'category_id': category, **shape})
    categories = [{'id': 7, 'name': 'cat'}, {'id': 3, 'name': 'dog'}]
    images = [{'id': 1, 'width': 100, 'height': 100, 'file_name': 'a.jpg'}]
    file = tmp_path / 'truth.json'
    content = {'images': images, 'annotations': annotations, 'categories': categories}
    file.write_text(json.dumps(content))
    evaluator = Evaluator([CocoMetric(ann_file=str(file), metric=metric)])
    evaluator.dataset_meta = {'classes': ('cat', 'dog')}
    add_classes(SimpleNamespace(evaluator=evaluator), {'type': 'CocoMetric'})
    mask = torch.zeros(1, 100, 100, dtype=torch.bool)
    mask[0, :20, :10] = True  # half of the cat
    found = {
        'bboxes': torch.tensor([[0.0, 0.0, 20.0, 20.0]]),
        'scores': torch.tensor([0.9]),
        'labels': torch.tensor([0]),
        'masks': mask,
    }
    evaluator.process([{'img_id': 1, 'ori_shape': (100, 100), 'pred_instances': found}])
    return evaluator.evaluate(1)


def test_ap_of_classes_is_by_their_names_and_has_five_digits(tmp_path):
    found = evaluated_boxes(tmp_path, 'bbox')
    assert found['coco/cat_precision'] == 0.33663  # 34 of COCO's 101 recalls
    assert found['coco/dog_precision'] == 0.0
    assert found['coco/bbox_mAP'] == 0.16832


def test_boxes_and_masks_have_ap_of_classes_each(tmp_path):
    found = evaluated_boxes(tmp_path, ['bbox', 'segm'])
    assert found['coco/bbox_cat_precision'] == 0.33663
    assert found['coco/segm_cat_precision'] == 0.03366  # only at an IoU of 0.5
    assert found['coco/segm_dog_precision'] == 0.0
    assert 'coco/cat_precision' not in found


class Images(list):
    """A data set that lists the paths of its images."""

    def get_data_info(self, index):
        return {'img_path': self[index]}


class WritingMetric(IoUMetric):
    """Notes the paths of label maps instead of writing them."""

    def __init__(self, output_dir):
        super().__init__(output_dir=output_dir)
        self.written = []

    def process(self, data_batch, data_samples):
        for sample in data_samples:
            self.written.append(f'{self.output_dir}/{Path(sample["img_path"]).stem}.png')


@pytest.mark.parametrize(
    ('paths', 'written'),
    [
        (('/d/x/a.jpg', '/d/y/b.jpg'), ('a', 'b')),  # as test servers expect
        (('/d/x/a.jpg', '/d/y/a.jpg'), ('x/a', 'y/a')),
        (('/d/a.jpg', '/d/a.png'), ('a.jpg', 'a.png')),
    ],
)
def test_a_metric_writes_a_file_for_each_image(paths, written, tmp_path):
    metric = WritingMetric(str(tmp_path))
    other = WritingMetric(None)
    evaluator = SimpleNamespace(metrics=[metric, other])
    loader = SimpleNamespace(dataset=Images(paths))
    write_apart(SimpleNamespace(evaluator=evaluator, dataloader=loader))
    samples = [{'img_path': path} for path in paths]
    for folder in (f'{tmp_path}/trial', str(tmp_path)):  # a run's trial writes to its own folder
        metric.output_dir = folder
        metric.process({}, samples)
        assert metric.output_dir == folder
    paths = [
        f'{folder}/{name}.png' for folder in (f'{tmp_path}/trial', tmp_path) for name in written
    ]
    assert metric.written == paths


def test_what_an_evaluator_prints_is_in_the_log(capsys):
    logger = MagicMock()
    evaluator = SimpleNamespace(evaluate=lambda size: print(f'{size} images') or {'mAP': 0.5})
    log_prints(evaluator, logger)
    assert evaluator.evaluate(2) == {'mAP': 0.5}
    logger.info.assert_called_once_with('2 images')
    assert capsys.readouterr().out == ''
