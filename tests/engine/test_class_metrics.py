"""Metrics of single classes, of real metrics of mmdet and mmseg."""

import math
from types import SimpleNamespace

import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.evaluator import Evaluator
from mmseg.evaluation import IoUMetric

from mmpola.engine.class_metrics import add_classes


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
