"""Polygons, run lengths and boxes of masks."""

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from mmpola.shapes import draw_scene
from mmpola.shapes.region import box, polygons, run_lengths


def rasterised(parts: list[list[float]], shape: tuple[int, int]) -> np.ndarray:
    return coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(parts, *shape))).astype(bool)


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()


def mask_of(*rows: str) -> np.ndarray:
    return np.array([[pixel == '#' for pixel in row] for row in rows])


SHAPES = {
    'one pixel': mask_of('....', '.#..', '....'),
    'the whole image': mask_of('####', '####', '####'),
    'a line': mask_of('......', '.####.', '......'),
    'a corner of the image': mask_of('##..', '#...', '....'),
    'two parts': mask_of('##...', '##.##', '...##'),
    'a hole': mask_of('#####', '#...#', '#####'),
    'a hole one pixel wide': mask_of('###', '#.#', '###'),
    'two holes': mask_of('#########', '#..###..#', '#..###..#', '#########'),
    'a part inside a hole': mask_of('#######', '#.....#', '#..#..#', '#.....#', '#######'),
}


@pytest.mark.parametrize('mask', SHAPES.values(), ids=SHAPES.keys())
def test_polygons_cover_the_mask_and_not_its_holes(mask):
    assert np.array_equal(rasterised(polygons(mask), mask.shape), mask)


def test_polygons_of_scenes_are_valid_and_fit():
    for index in range(60):
        for instance in draw_scene(2, index).instances:
            height, width = instance.mask.shape
            parts = polygons(instance.mask)
            for part in parts:
                x, y = np.reshape(part, (-1, 2)).T
                assert len(part) >= 6
                assert x.min() >= 0 and y.min() >= 0 and x.max() <= width and y.max() <= height
                assert abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 > 0
            least = 0.9 if instance.mask.sum() > 100 else 0.8
            assert iou(rasterised(parts, instance.mask.shape), instance.mask) >= least


@pytest.mark.parametrize('mask', SHAPES.values(), ids=SHAPES.keys())
def test_run_lengths_decode_to_the_mask(mask):
    runs = run_lengths(mask)
    assert runs['size'] == list(mask.shape)
    assert sum(runs['counts']) == mask.size
    decoded = coco_mask.decode(coco_mask.frPyObjects(runs, *mask.shape))
    assert np.array_equal(decoded.astype(bool), mask)


def test_run_lengths_are_by_column_and_begin_with_zeros():
    assert run_lengths(mask_of('#.', '##'))['counts'] == [0, 2, 1, 1]
    assert run_lengths(mask_of('..#', '.##'))['counts'] == [3, 3]


def test_a_box_is_tight():
    assert box(mask_of('.....', '..##.', '..#..')) == [2, 1, 2, 2]
