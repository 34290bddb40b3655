"""How single images are read for a detector or segmenter."""

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config

from mmpola.apps.image_reader import image_pipeline, loading_notes


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


def stored(folder, pixels):
    """Write pixels to PNG files and return (file, pixels) as mmdet loads them."""
    files = []
    for number, image in enumerate(pixels):
        path = folder / f'{number}.png'
        cv2.imwrite(str(path), image)
        loaded = LoadImageFromFile(to_float32=True)({'img_path': str(path)})
        files.append((path, loaded['img']))
    return files


def test_twelve_of_sixteen_bits_are_named(tmp_path):
    values = np.random.default_rng(0).integers(0, 4096, (3, 20, 30, 3)).astype(np.uint16)
    (note,) = loading_notes(stored(tmp_path, values), 3)
    assert note.startswith(f'{tmp_path}/0.png: the largest value of the first 16-bit images is 15 ')
    unchanged = [(path, cv2.imread(str(path), -1)) for path in tmp_path.iterdir()]
    assert loading_notes(unchanged, 3) == []
    small = [(path, pixels // 10) for path, pixels in unchanged]
    (note,) = loading_notes(small, 3)
    assert ' of 65535 as loaded; ' in note


def test_one_bright_image_is_enough(tmp_path):
    values = np.zeros((3, 20, 30, 3), np.uint16)
    values[1, 5, 5] = 40_000
    assert loading_notes(stored(tmp_path, values), 3) == []


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_dark_images_of_eight_bits_are_no_fault(dtype, tmp_path):
    dark = np.random.default_rng(0).integers(0, 14, (2, 20, 30, 3)).astype(np.uint8)
    images = [(path, pixels.astype(dtype)) for path, pixels in stored(tmp_path, dark)]
    assert loading_notes(images, 3) == []


@pytest.mark.parametrize('shape', [(20, 30), (20, 30, 1), (20, 30, 4)])
def test_other_channels_are_named_once(shape):
    channels = shape[2] if len(shape) == 3 else 1
    images = [('a.tif', np.full(shape, 200, np.uint8))] * 2
    (note,) = loading_notes(images, 3)
    assert note.startswith('a.tif: expected 3 channels (model.backbone.in_channels), got ')
    assert f'got {channels} from' in note
    assert loading_notes(images, channels) == []
