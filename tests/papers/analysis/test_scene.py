"""Where the test pipeline puts a pixel of an image, found by a white square, and its token."""

import re

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope

from mmpola.messages import UsageError
from mmpola.openmmlab.predict.reader import ClassFoldersReader, PipelineReader
from mmpola.papers.analysis.scene import Geometry, Scene, pipeline_geometry, transform_geometry

PIPELINES = {
    'mmdet': [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(200, 120), keep_ratio=True),
        dict(type='Pad', size_divisor=32),
        dict(type='mmdet.PackDetInputs', meta_keys=('scale_factor',)),
    ],
    'mmseg': [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(256, 64), keep_ratio=True),
        dict(type='mmseg.PackSegInputs'),
    ],
    'mmseg without resizing': [
        dict(type='LoadImageFromFile'),
        dict(type='mmseg.PackSegInputs'),
    ],
}
TRANSFORMS = {
    'classifier': dict(input_size=64, crop_pct=0.875, interpolation='bicubic'),
    'classifier, squashed and cropped': dict(input_size=64, crop_pct=0.875, crop_mode='squash'),
    'classifier, whole image': dict(input_size=64, crop_pct=1.0, crop_mode='squash'),
}
SIDE = 12  # of the square


def white_square(size, x, y):
    """A black image with a white square around the pixel (x, y)."""
    pixels = np.zeros((*size, 3), np.uint8)
    cv2.rectangle(
        pixels, (x - SIDE // 2, y - SIDE // 2), (x + SIDE // 2, y + SIDE // 2), (255, 255, 255), -1
    )
    return pixels


def centre_of_light(inputs):
    """The centre (x, y) of the bright pixels of the network's input [3, H, W]."""
    light = inputs.float().mean(0).numpy()
    light = light - light.min()
    rows, columns = np.indices(light.shape) + 0.5
    return (light * columns).sum() / light.sum(), (light * rows).sum() / light.sum()


@pytest.mark.parametrize('size', [(150, 200), (240, 110)])
@pytest.mark.parametrize('name', [*PIPELINES, *TRANSFORMS])
def test_a_point_is_where_the_pipeline_puts_it(name, size, tmp_path):
    if name in PIPELINES:
        init_default_scope(name.split()[0])
        kind = {'mmdet': 'CocoDataset', 'mmseg': 'BaseSegDataset'}[name.split()[0]]
        dataset = dict(type=kind, ann_file='', data_root='none', metainfo=dict(classes=['a']))
        reader = PipelineReader({**dataset, 'pipeline': PIPELINES[name]})
    else:
        reader = ClassFoldersReader(TRANSFORMS[name])

    def load(x, y):
        path = tmp_path / 'square.png'
        cv2.imwrite(str(path), white_square(size, x, y))
        return reader.load(path).item

    if name in PIPELINES:
        geometry = pipeline_geometry(load(0, 0))
    else:
        geometry = transform_geometry(reader.steps, size)
    for x, y in ((size[1] // 2, size[0] // 2), (size[1] // 2 - 20, size[0] // 2 + 15)):
        inputs = load(x, y)['inputs']
        assert geometry.size == tuple(inputs.shape[-2:])
        assert geometry.to_input(x + 0.5, y + 0.5) == pytest.approx(
            centre_of_light(inputs), abs=0.25
        )
        assert geometry.to_image(*geometry.to_input(x, y)) == pytest.approx((x, y))


def scene(size, geometry):
    """A black image of (height, width), padded to a multiple of 32 in the network's input."""
    padded = [-(-side // 32) * 32 for side in geometry.size]
    return Scene(np.zeros((*size, 3), np.uint8), torch.zeros(1, 3, *padded), geometry)


@pytest.mark.parametrize(
    ('size', 'grid', 'side'),
    [((64, 96), (16, 24), 4), ((96, 160), (6, 10), 16), ((800, 1344), (200, 336), 4)],
)
def test_side_of_a_token(size, grid, side):
    assert scene(size, Geometry((1, 1), (0, 0), size)).token_side(grid) == side


def test_a_grid_that_no_stride_gives():
    square = scene((64, 64), Geometry((1, 1), (0, 0), (64, 64)))
    with pytest.raises(ValueError, match=re.escape('grid: expected 64, 64 divided by a power')):
        square.token_side((5, 5))


def test_tokens_of_a_resized_and_cropped_image():
    """An image of 400 x 200 pixels, halved and cropped to its middle 96 x 96 pixels."""
    cropped = scene((200, 400), Geometry((0.5, 0.5), (-52.0, -2.0), (96, 96)))
    assert cropped.visible == (104, 4, 296, 196)
    assert cropped.centre == (200, 100)
    points = [(104, 4), (111, 12), (112, 11), (295, 195)]
    assert cropped.tokens(points, (24, 24)) == [(0, 0), (1, 0), (0, 1), (23, 23)]
    cropped.check_points(points)
    for outside in ((103, 100), (296, 100), (200, 3), (200, 196)):
        with pytest.raises(UsageError, match=r'x from 104 to 295 and y from 4 to 195'):
            cropped.check_points([outside])


def test_the_centre_of_a_pixel_chooses_its_token():
    """Pixel 5 of an image that is enlarged 1.5 times covers 7.5 to 9; the centre is 8.25."""
    enlarged = scene((64, 64), Geometry((1.5, 1.5), (0.0, 0.0), (96, 96)))
    assert enlarged.tokens([(5, 2), (2, 5)], (24, 24)) == [(0, 2), (2, 0)]
