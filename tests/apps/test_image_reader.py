"""Reading images as a config says; the sizes after test transforms, against their results."""

import struct
import zlib

import numpy as np
import pytest
from mmcv.transforms import Resize
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from timm.data import create_transform

from mmpola.apps.image_reader import (
    LARGEST_INPUT,
    ClassifierReader,
    ImageReader,
    PipelineReader,
    image_pipeline,
    resized_by_pipeline,
    resized_by_transforms,
)
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


def pipeline_reader(**resize):
    """A reader of mmseg's images, which resizes them."""
    init_default_scope('mmseg')
    steps = [{'type': 'LoadImageFromFile'}, {'type': 'Resize', **resize}, {'type': 'PackSegInputs'}]
    return PipelineReader(steps, 'mmseg')


def test_an_image_that_a_pipeline_would_blow_up_is_refused():
    reader = pipeline_reader(scale=(10**9, 64), keep_ratio=True)
    with pytest.raises(UsageError, match=f'1 x 50000 .* 64 x 3200000; .* {LARGEST_INPUT} '):
        reader.check_size((50_000, 1))


@pytest.mark.parametrize(
    'reader',
    [
        ClassifierReader({'input_size': (3, 32, 32), 'crop_mode': 'border'}),
        pipeline_reader(scale=(64, 32), keep_ratio=True),
    ],
)
def test_a_side_that_vanishes_is_refused(reader):
    with pytest.raises(UsageError, match='1 x 500 pixels, too narrow'):
        reader.check_size((500, 1))


def test_the_limit_itself_is_allowed():
    class Squashing(ImageReader):
        def resized(self, size):
            height, width = size
            return [(1, height * width)]

    Squashing().check_size((1, LARGEST_INPUT))
    with pytest.raises(UsageError, match=str(LARGEST_INPUT + 1)):
        Squashing().check_size((1, LARGEST_INPUT + 1))


def test_images_are_loaded_as_the_config_says_and_annotations_are_not():
    steps = [
        {'type': 'mmdet.LoadAnnotations', 'with_bbox': True},
        {'type': 'mmdet.LoadImageFromFile', 'to_float32': True},
        {'type': 'mmdet.PackDetInputs'},
    ]
    dataset = {'type': 'RepeatDataset', 'dataset': {'type': 'CocoDataset', 'pipeline': steps}}
    assert image_pipeline(Config({'test_dataloader': {'dataset': dataset}})) == [
        {'type': 'LoadImageFromFile', 'to_float32': True},
        {'type': 'mmdet.PackDetInputs'},
    ]


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
