"""Where the test pipeline puts a pixel of an image, found by a white square, and its token."""

import re

import cv2
import numpy as np
import pytest
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope

from mmpola.apps.analysis.geometry import (
    Geometry,
    centre,
    pipeline_geometry,
    token_at,
    token_stride,
    transform_geometry,
    visible_pixels,
)
from mmpola.apps.image_reader import ClassifierReader

PIPELINES = {
    'mmdet': [
        dict(type='mmdet.InferencerLoader'),
        dict(type='Resize', scale=(200, 120), keep_ratio=True),
        dict(type='Pad', size_divisor=32),
        dict(type='mmdet.PackDetInputs', meta_keys=('scale_factor',)),
    ],
    'mmseg': [
        dict(type='mmseg.InferencerLoader'),
        dict(type='Resize', scale=(256, 64), keep_ratio=True),
        dict(type='mmseg.PackSegInputs'),
    ],
    'mmseg without resizing': [
        dict(type='mmseg.InferencerLoader'),
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
def test_a_point_is_where_the_pipeline_puts_it(name, size):
    if name in PIPELINES:
        init_default_scope(name.split()[0])
        transforms = Compose(PIPELINES[name])
        geometry = pipeline_geometry(transforms(white_square(size, 0, 0)))
    else:
        reader = ClassifierReader(TRANSFORMS[name])
        transforms = reader.transform
        geometry = transform_geometry(reader.steps, size)
    for x, y in ((size[1] // 2, size[0] // 2), (size[1] // 2 - 20, size[0] // 2 + 15)):
        inputs = transforms(white_square(size, x, y))['inputs']
        assert geometry.size == tuple(inputs.shape[-2:])
        assert geometry.to_input(x + 0.5, y + 0.5) == pytest.approx(
            centre_of_light(inputs), abs=0.25
        )
        assert geometry.to_image(*geometry.to_input(x, y)) == pytest.approx((x, y))


def test_coordinates():
    geometry = Geometry(scale=(0.5, 2.0), shift=(-10.0, 0.0), size=(64, 64))
    assert geometry.to_input(100, 7) == (40, 14)
    assert geometry.to_image(40, 14) == (100, 7)


@pytest.mark.parametrize(
    ('size', 'grid', 'stride'),
    [
        ((64, 96), (16, 24), 4),
        ((33, 47), (2, 2), 32),
        ((97, 130), (7, 9), 16),
        ((800, 1344), (200, 336), 4),
    ],
)
def test_stride_of_a_grid(size, grid, stride):
    assert token_stride(size, grid) == stride


def test_a_grid_that_no_stride_gives():
    with pytest.raises(
        ValueError, match=re.escape('grid: expected (64, 64) divided by a power of two')
    ):
        token_stride((64, 64), (5, 5))


def test_tokens_of_a_resized_and_cropped_image():
    """An image of 400 x 200 pixels, halved and cropped to its middle 100 x 100 pixels."""
    geometry = Geometry(scale=(0.5, 0.5), shift=(-50.0, 0.0), size=(100, 100))
    assert visible_pixels(geometry, (200, 400)) == (100, 0, 300, 200)
    assert token_at((100, 0), geometry, 4, (25, 25)) == (0, 0)
    assert token_at((107, 8), geometry, 4, (25, 25)) == (1, 0)
    assert token_at((108, 7), geometry, 4, (25, 25)) == (0, 1)
    assert token_at((299, 199), geometry, 4, (25, 25)) == (24, 24)


def test_the_centre_of_a_pixel_chooses_its_token():
    """Pixel 5 of an image that is enlarged 1.5 times covers 7.5 to 9; the centre is 8.25."""
    geometry = Geometry(scale=(1.5, 1.5), shift=(0.0, 0.0), size=(24, 24))
    assert token_at((5, 2), geometry, 4, (6, 6)) == (0, 2)
    assert token_at((2, 5), geometry, 4, (6, 6)) == (2, 0)


@pytest.mark.parametrize('shift', [-1048.0, -1059.9, -1080.0])
def test_less_than_a_pixel_is_one_pixel(shift):
    """An image of 60 x 1 pixels, enlarged 36 times and cropped to 32 x 32."""
    geometry = Geometry(scale=(36.0, 36.0), shift=(shift, -2.0), size=(32, 32))
    left, top, right, bottom = visible_pixels(geometry, (1, 60))
    assert (top, right - left, bottom) == (0, 1, 1)
    assert left <= (16 - shift) / 36 <= right
    assert centre(geometry, (1, 60)) == (left, 0)
