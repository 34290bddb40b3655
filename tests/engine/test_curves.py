"""Curves of a training run as a picture, and which lines of scalars.json a resumed run keeps."""

import io
import json

import numpy as np
from PIL import Image

from mmpola.engine.curves import POINTS, draw_curves, grouped, metric_points, training_points
from mmpola.engine.hooks.curves import lines_before

CLASSES = ('cat', 'dog', 'x' * 3)
HISTORIES = {
    'train/lr': [0.1, 0.2],
    'train/loss': [3.0, 2.0],
    'train/loss_cls': [1.0, 1.0],
    'train/time': [1.0, 1.0],
    'train/acc': [1.0, 1.0],
    'val/coco/bbox_mAP': [0.1],
    'val/coco/bbox_mAP_l': [-1.0],
    'val/coco/cat_precision': [float('nan')],
    'val/coco/dog_precision': [0.3],
    'val/accuracy/top1': [71.0],
    'val/time': [1.0],
    'curves/step': [2],
}


def test_values_are_sorted_into_panels():
    panels = {title: list(curves) for title, curves in grouped(HISTORIES, CLASSES).items()}
    assert panels == {
        'losses': ['train/loss', 'train/loss_cls'],
        'learning rate': ['train/lr'],
        'metrics': ['val/coco/bbox_mAP'],
        'metrics above 1': ['val/accuracy/top1'],
        'single classes': ['val/coco/cat_precision', 'val/coco/dog_precision'],
    }


def test_of_many_classes_the_worst_are_drawn():
    classes = [f'class{number}' for number in range(30)]
    histories = {f'val/coco/{name}_precision': [0.9 - i / 100] for i, name in enumerate(classes)}
    panels = grouped(histories, classes)
    worst = panels['the 10 worst of 30 classes']
    assert list(worst) == [f'val/coco/class{number}_precision' for number in range(29, 19, -1)]


def test_the_picture_has_lines_of_every_panel():
    content = draw_curves(HISTORIES, [2], 2, CLASSES)
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert('RGB')).astype(int)
    blue = np.abs(pixels - (31, 119, 180)).max(axis=2) < 10  # matplotlib's first colour
    height = len(pixels) // 5
    for number in range(5):
        assert blue[number * height : (number + 1) * height].any(), number


def test_a_run_without_values_has_a_picture_too():
    assert draw_curves({}, [], 0, []).startswith(b'\x89PNG')


def test_the_last_value_of_training_is_that_of_the_last_step():
    x, y = training_points([5.0, 4.0], 7)
    assert x.tolist() == [6, 7]
    assert y.tolist() == [5, 4]
    x, y = training_points(np.arange(10_000.0), 10_000)
    assert len(x) == len(y) == POINTS
    assert np.allclose(x - y, 1)  # both are means of the same steps


def test_metrics_of_an_older_checkpoint_are_left_out():
    x, y = metric_points([0.1, 0.2, 0.3], [20, 30])
    assert x.tolist() == [20, 30]
    assert y.tolist() == [0.2, 0.3]


def scalars(*entries):
    return [json.dumps(entry) for entry in entries]


def test_steps_after_the_checkpoint_are_left_out():
    lines = scalars(
        {'loss': 1, 'iter': 5, 'step': 5},
        {'mAP': 1, 'step': 1},
        {'loss': 1, 'iter': 10, 'step': 10},
        {'mAP': 1, 'step': 2},
        {'loss': 1, 'iter': 15, 'step': 15},
        {'mAP': 1, 'step': 3},
    )
    assert lines_before(lines, 10, 2, is_due=False) == lines[:4]
    assert lines_before(lines, 10, 2, is_due=True) == lines[:3]  # validated again
    assert lines_before(lines, 7, 1, is_due=False) == lines[:2]


def test_a_line_that_was_being_written_is_left_out():
    lines = [*scalars({'iter': 1}), '{"iter": 2, "lo']
    assert lines_before(lines, 10, 2, is_due=False) == lines[:1]
