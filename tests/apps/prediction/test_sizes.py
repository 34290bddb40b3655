"""Sizes that test transforms resize an image to, compared with what the transforms return."""

import struct
import zlib

import numpy as np
import pytest
from mmcv.transforms import Resize
from PIL import Image
from timm.data import create_transform

from mmpola.apps.prediction.predictor import resized_by_pipeline
from mmpola.apps.prediction.sizes import LARGEST_INPUT, check_sizes, resized_by_transforms
from mmpola.messages import UsageError
from mmpola.read_image import size_as_loaded


@pytest.mark.parametrize('size', [(40, 30), (7, 90), (1, 50)])
@pytest.mark.parametrize(
    'options',
    [{}, {'crop_mode': 'squash'}, {'input_size': (3, 32, 24)}, {'input_size': (3, 24, 64)}],
)
def test_transforms_resize_to_that_size(options, size):
    transform = create_transform(**{'input_size': (3, 32, 32), **options}, is_training=False)
    (found,) = resized_by_transforms(transform.transforms, size)
    height, width = size
    resized = transform.transforms[0](Image.new('RGB', (width, height)))
    assert found == (resized.height, resized.width)


@pytest.mark.parametrize('size', [(40, 30), (7, 90), (9, 50)])
@pytest.mark.parametrize(
    'options',
    [
        {'scale': (64, 32), 'keep_ratio': True},
        {'scale': (64, 32)},
        {'scale_factor': 2.5},
        {'scale_factor': (0.5, 3.0), 'keep_ratio': True},
    ],
)
def test_pipelines_resize_to_that_size(options, size):
    step = Resize(**options)
    after = Resize(scale_factor=2.0)
    resized = step({'img': np.zeros((*size, 3), np.uint8)})
    height, width = resized['img'].shape[:2]
    found = resized_by_pipeline([step, np.flip, after], size)
    assert found == [(height, width), (2 * height, 2 * width)]


def test_a_pipeline_without_a_bound_is_refused_before_it_runs():
    step = Resize(scale=(10**9, 64), keep_ratio=True)
    with pytest.raises(UsageError, match=f'1 x 50000 .* 64 x 3200000; .* {LARGEST_INPUT} '):
        check_sizes((50_000, 1), lambda size: resized_by_pipeline([step], size))


def test_a_side_that_vanishes_is_refused():
    transform = create_transform((3, 32, 32), is_training=False, crop_mode='border')
    with pytest.raises(UsageError, match='1 x 500 pixels, too narrow'):
        check_sizes((500, 1), lambda size: resized_by_transforms(transform.transforms, size))
    step = Resize(scale=(64, 32), keep_ratio=True)
    with pytest.raises(UsageError, match='1 x 500 pixels, too narrow'):
        check_sizes((500, 1), lambda size: resized_by_pipeline([step], size))


def test_the_limit_itself_is_allowed():
    check_sizes((1, 1), lambda size: [(1, LARGEST_INPUT)])
    with pytest.raises(UsageError, match=str(LARGEST_INPUT + 1)):
        check_sizes((1, 1), lambda size: [(1, LARGEST_INPUT + 1)])


def test_a_file_of_too_many_pixels_for_pillow_has_no_size(tmp_path):
    def chunk(kind, data):
        return (
            struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        )

    header = struct.pack('>IIBBBBB', 60_000, 60_000, 1, 0, 0, 0, 0)
    path = tmp_path / 'large.png'
    path.write_bytes(
        b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', zlib.compress(b''))
    )
    assert size_as_loaded(path) is None
