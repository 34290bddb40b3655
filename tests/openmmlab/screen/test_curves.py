"""Curves of a training run, from what its starts have logged."""

import io
import json
import math
import os

import numpy as np
import pytest
from PIL import Image

from mmpola.messages import UsageError
from mmpola.openmmlab.screen import curves
from mmpola.openmmlab.screen.curves import (
    averaged,
    draw_curves,
    grouped,
    look,
    picture,
    read_scalars,
    series,
)
from tests.helpers.processes import run_script

VALUES = {
    'train/base_lr': {1: 0.1, 2: 0.2},
    'train/lr': {1: 0.1, 2: 0.2},
    'train/loss': {1: 3.0, 2: 2.0},
    'train/loss_cls': {1: 1.0, 2: 1.0},
    'train/acc': {1: 1.0, 2: 1.0},
    'val/coco/bbox_mAP': {1: 0.1, 2: 0.1},
    'val/coco/bbox_mAP_l': {1: -1.0, 2: -1.0},
    'val/coco/cat_precision': {1: 0.2, 2: 0.2},
    'val/coco/dog_precision': {1: 0.3, 2: 0.3},
    'val/accuracy/top1': {1: 71.0, 2: 71.0},
    'val/IoU.a cat': {1: 12.0, 2: 12.0},
}


def write(work, name, *lines):
    path = work / name / 'vis_data' / 'scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text(
        '\n'.join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )


def step(number, loss=1.0):
    return {'lr': 0.1, 'loss': loss, 'time': 1.0, 'epoch': 1, 'iter': number, 'step': number}


def test_values_are_sorted_into_panels():
    panels = {title: list(found) for title, found in grouped(VALUES).items()}
    assert panels == {
        'losses': ['loss', 'loss_cls'],
        'learning rate': ['base_lr', 'lr'],
        'metrics': ['coco/bbox_mAP'],
        'metrics above 1': ['accuracy/top1'],
        'single classes': ['coco/cat_precision', 'coco/dog_precision', 'IoU.a cat'],
    }


def test_of_many_classes_the_worst_are_drawn():
    values = {f'val/IoU.class{number}': {1: 90.0 - number} for number in range(30)}
    values['val/IoU.absent'] = {1: math.nan}
    worst = grouped(values)['the 10 worst of 31 classes']
    assert list(worst) == [f'IoU.class{number}' for number in range(20, 30)]


def test_of_many_losses_the_sum_and_the_largest_are_drawn():
    values = {f'train/loss{number}': {1: 0.1 * number} for number in range(30)}
    values['train/loss'] = {1: 43.5}
    largest = grouped(values)['the 10 largest of 31 losses']
    assert list(largest) == [*(f'loss{number}' for number in range(21, 30)), 'loss']


def test_the_picture_has_lines_of_every_panel():
    pixels = pixels_of(VALUES)
    height = len(pixels) // 5
    for number in range(5):
        assert has(pixels[number * height : (number + 1) * height], 0), number


def pixels_of(values):
    return np.asarray(Image.open(io.BytesIO(picture(values))).convert('RGB')).astype(int)


def has(pixels, index):
    """Whether a part of a picture, without its legend, shows the colour of a curve."""
    colour = np.array(look(index)['color'][:3]) * 255
    curves_only = pixels[:, : pixels.shape[1] // 2]
    return bool((np.abs(curves_only - colour).max(axis=2) < 10).any())


@pytest.mark.parametrize('number', [2, 3])
def test_equal_curves_are_all_seen(number):
    values = {f'val/metric{index}': {1: 0.5, 100: 0.5} for index in range(number)}
    pixels = pixels_of(values)
    assert all(has(pixels, index) for index in range(number))


def test_curves_of_a_panel_look_different():
    looks = {(look(number)['color'], look(number)['linestyle']) for number in range(20)}
    assert len(looks) == 20


def test_a_rate_that_stays_is_below_the_frame(monkeypatch):
    limits = []
    monkeypatch.setattr(
        curves.Figure,
        'savefig',
        lambda self, *_, **__: limits.extend(axes.get_ylim() for axes in self.axes),
    )
    picture({'train/lr': {1: 0.1, 2: 0.1}})
    assert limits == [(0, pytest.approx(0.105))]


def test_many_steps_are_averaged():
    x, y = averaged({number: float(number - 1) for number in range(1, 10_001)})
    assert len(x) == len(y) == curves.POINTS
    assert np.allclose(x - y, 1)  # both are means of the same steps


def test_a_later_start_wins_from_its_first_step_on(tmp_path):
    write(
        tmp_path,
        '20260101_000000',
        step(6),
        {'mAP': 0.1, 'step': 1},
        step(12, 9.0),
        {'mAP': 0.9, 'step': 2},
        '{"iter": 13, "lo',
    )
    write(tmp_path, '20260101_000001', step(12, 2.0), {'mAP': 0.2, 'step': 2})
    write(tmp_path, '20260101_000002', {'mAP': 0.25, 'step': 2}, step(18), {'mAP': 0.3, 'step': 3})
    values = series(read_scalars(tmp_path))
    assert values['train/loss'] == {6: 1.0, 12: 2.0, 18: 1.0}
    assert values['val/mAP'] == {6: 0.1, 12: 0.25, 18: 0.3}
    assert set(values) == {'train/loss', 'train/lr', 'val/mAP'}


def test_a_clock_that_went_back_hides_no_steps(tmp_path):
    """Names of folders are local times, which go back at the end of summer time."""
    write(tmp_path, '20261025_013000', step(6), {'mAP': 0.6, 'step': 6}, step(9))
    write(tmp_path, '20261025_023000', step(1), step(3), {'mAP': 0.3, 'step': 3}, step(6, 9.0))
    write(tmp_path, '20261025_010000')  # ended before its first line
    for number, name in enumerate(['20261025_023000', '20261025_013000']):
        os.utime(tmp_path / name / 'vis_data' / 'scalars.json', (number, number))
    values = series(read_scalars(tmp_path))
    assert values['train/loss'] == {1: 1.0, 3: 1.0, 6: 1.0, 9: 1.0}
    assert values['val/mAP'] == {3: 0.3, 6: 0.6}


def test_copied_files_keep_their_order(tmp_path):
    """Their times are those of the copy, in any order; the second start is an overwriting one."""
    write(tmp_path, '20260101_000000', step(1), step(2), step(3))
    write(tmp_path, '20260101_000001', step(1, 2.0), step(2, 2.0))
    write(tmp_path, '20260101_000002', step(2, 3.0), step(3, 3.0))
    for number, path in enumerate(sorted(tmp_path.glob('*/vis_data/scalars.json'), reverse=True)):
        os.utime(path, (number, number))
    assert series(read_scalars(tmp_path))['train/loss'] == {1: 2.0, 2: 3.0, 3: 3.0}


def test_a_validation_between_lines_of_training_has_its_own_step(tmp_path):
    write(tmp_path, '1', {'mIoU': 1.0, 'step': 20}, {'mIoU': 2.0, 'step': 40}, step(50))
    assert series(read_scalars(tmp_path))['val/mIoU'] == {20: 1.0, 40: 2.0}


def test_names_with_the_split_in_front_are_the_same():
    lines = [{'train/loss': 1.0, 'iter': 1, 'step': 1}, {'val/mIoU': 2.0, 'step': 1}]
    assert list(series(lines)) == ['train/loss', 'val/mIoU']


def test_the_command_draws_into_the_work_dir(tmp_path, capsys):
    write(tmp_path, '1', step(1))
    assert run_script('curves', tmp_path) == 0
    assert capsys.readouterr().out == f'{tmp_path}/curves.png\n'
    assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG')


def test_a_folder_without_values_is_refused(tmp_path):
    with pytest.raises(UsageError, match='found no value'):
        draw_curves(tmp_path)
