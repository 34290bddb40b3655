"""Where a pixel of an image is in the network's input: found by a white square that passes the test pipeline."""

import cv2
import numpy as np
import pytest
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope

from mmpola.prediction.geometry import Geometry, pipeline_geometry, transform_geometry
from mmpola.prediction.predictor import ClassifierTransform

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
    'mmseg without resizing': [dict(type='mmseg.InferencerLoader'), dict(type='mmseg.PackSegInputs')],
}
TRANSFORMS = {
    'classifier': dict(input_size=64, crop_pct=0.875, interpolation='bicubic'),
    'classifier, whole image': dict(input_size=64, crop_pct=1.0, crop_mode='squash'),
}
SIDE = 12  # of the square


def white_square(size, x, y):
    """A black image with a white square around the pixel (x, y)."""
    pixels = np.zeros((*size, 3), np.uint8)
    cv2.rectangle(pixels, (x - SIDE // 2, y - SIDE // 2), (x + SIDE // 2, y + SIDE // 2), (255, 255, 255), -1)
    return pixels


def centre_of_light(inputs):
    """The centre (x, y) of the bright pixels of the network's input [3, H, W], whose background is its minimum."""
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
        transforms = ClassifierTransform(TRANSFORMS[name])
        geometry = transform_geometry(transforms.steps, size)
    for x, y in ((size[1] // 2, size[0] // 2), (size[1] // 2 - 20, size[0] // 2 + 15)):
        inputs = transforms(white_square(size, x, y))['inputs']
        assert geometry.size == tuple(inputs.shape[-2:])
        assert geometry.to_input(x + 0.5, y + 0.5) == pytest.approx(centre_of_light(inputs), abs=0.25)
        assert geometry.to_image(*geometry.to_input(x, y)) == pytest.approx((x, y))


def test_coordinates():
    geometry = Geometry(scale=(0.5, 2.0), shift=(-10.0, 0.0), size=(64, 64))
    assert geometry.to_input(100, 7) == (40, 14)
    assert geometry.to_image(40, 14) == (100, 7)
