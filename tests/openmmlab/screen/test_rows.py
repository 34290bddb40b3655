"""The row of a validation, of the metrics that different libraries have."""

import math

import pytest

from mmpola.openmmlab.screen.rows import ValidationTable, metric_cells

BOXES = ['bbox_mAP', 'bbox_mAP_50', 'bbox_mAP_75', 'bbox_mAP_s', 'bbox_mAP_m', 'bbox_mAP_l']


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        ([f'coco/{name}' for name in BOXES], ['bbox_mAP', 'bbox_mAP_50']),
        (
            [f'coco/{kind}_{name[5:]}' for kind in ('bbox', 'segm') for name in BOXES],
            ['bbox_mAP', 'bbox_mAP_50', 'segm_mAP', 'segm_mAP_50'],
        ),
        (['pascal_voc/mAP', 'pascal_voc/AP50'], ['mAP', 'AP50']),
        (
            ['aAcc', 'mIoU', 'mAcc', 'IoU.road', 'IoU.a car'],
            ['aAcc', 'mIoU', 'mAcc', 'road', 'a car'],
        ),
        (['accuracy/top1', 'accuracy/top5'], ['top1', 'top5']),
        (['a/mIoU', 'b/mIoU'], ['a/mIoU', 'b/mIoU']),
        (['coco/cat_precision', 'coco/bbox_mAP'], ['bbox_mAP']),
        (['coco/a_precision', 'coco/b_precision', 'coco/bbox_mAP'], ['bbox_mAP', 'a', 'b']),
        (['m1', 'm2', 'm3', 'm4', 'm5'], ['m1', 'm2', 'm3', 'm4']),
    ],
)
def test_columns(names, expected):
    assert [name for name, _ in metric_cells(dict.fromkeys(names, 0.5))] == expected


def test_the_metric_that_decides_is_shown():
    metrics = dict.fromkeys(['m1', 'm2', 'm3', 'm4', 'm5'], 0.5)
    assert [name for name, _ in metric_cells(metrics, ['m5'])] == ['m1', 'm2', 'm3', 'm5']
    metrics = dict.fromkeys(BOXES, 0.5)
    shown = [name for name, _ in metric_cells(metrics, ['bbox_mAP_s'])]
    assert shown == ['bbox_mAP', 'bbox_mAP_50', 'bbox_mAP_s']


def test_more_than_six_classes_are_left_to_the_curves():
    metrics = {f'IoU.class{number}': 1.0 for number in range(7)}
    assert metric_cells(metrics) == []


def test_of_many_metrics_of_classes_those_of_boxes_are_shown():
    names = [f'{kind}_{name}' for kind in ('bbox', 'segm') for name in 'abcd']
    metrics = {f'coco/{name}_precision': 0.5 for name in names}
    assert [name for name, _ in metric_cells(metrics)] == names[:4]
    del metrics['coco/bbox_d_precision']
    del metrics['coco/segm_d_precision']
    assert [name for name, _ in metric_cells(metrics)] == [*names[:3], *names[4:7]]


def test_values_are_hundredths_of_a_percent():
    metrics = {'mAP': 0.05, 'mIoU': 45.6, 'top1': 100.0, 'lists': [1, 2], 'none': math.nan}
    assert [text for _, text in metric_cells(metrics)] == ['0.0500', '45.60', '100.00', 'nan']


def test_a_heading_comes_once():
    table = ValidationTable()
    assert table.lines([('epoch', '1'), ('best', '')]) == ['  epoch     best', '      1']
    assert table.lines([('epoch', '2'), ('best', 'best')]) == ['      2     best']
    assert len(table.lines([('epoch', '3')])) == 2
