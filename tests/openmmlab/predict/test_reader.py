"""How single images are read, and what is said about them."""

from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform, LoadAnnotations, LoadImageFromFile
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, TRANSFORMS
from mmengine.structures import BaseDataElement

from mmpola.messages import UsageError
from mmpola.openmmlab.predict.reader import (
    LoadedImage,
    channels_note,
    open_reader,
    sixteen_bits_note,
)

ANNOTATIONS = [
    dict(type='mmdet.LoadAnnotations', with_bbox=True),
    dict(type='mmdet.LoadPanopticAnnotations'),
    dict(type='mmdet.LoadProposals'),
    dict(type='mmdet.FilterAnnotations'),
    dict(type='mmseg.LoadAnnotations'),
    dict(type='OwnMasks'),
]
"""Steps that new images have nothing for."""


@TRANSFORMS.register_module()
class OwnMasks(LoadAnnotations):
    """A step of a user that loads annotations, which its name does not say."""


@TRANSFORMS.register_module()
class ScaledLoader(BaseTransform):
    """Divides 16-bit values by what the data set's images have in common."""

    def transform(self, results):
        pixels = cv2.imread(results['img_path'], cv2.IMREAD_UNCHANGED)
        results['img'] = pixels.astype(np.float32) / results['gain']
        return results


@TRANSFORMS.register_module()
class Pack(BaseTransform):
    """Writes into the image and packs it."""

    def transform(self, results):
        results['img'] -= 1
        sample = BaseDataElement(metainfo={'img_id': results['img_id']})
        return {'inputs': torch.from_numpy(results['img']), 'data_samples': sample}


@DATASETS.register_module()
class OwnImages(BaseDataset):
    """Two images, with a setting of all of them and an offset of each."""

    METAINFO: ClassVar = {'classes': ('one', 'two')}

    def load_data_list(self):
        if not Path(self.ann_file).exists():
            raise FileNotFoundError(self.ann_file)
        folder = Path(self.ann_file).parent
        first = {'img_path': f'{folder}/a.npy', 'img_id': 7, 'gain': 16.0, 'offset': 1}
        second = {'img_path': f'{folder}/b.npy', 'img_id': 8, 'gain': 16.0, 'offset': 2}
        return [first, second]


def own_config(folder, steps):
    dataset = {'type': 'OwnImages', 'ann_file': str(folder / 'list.txt'), 'pipeline': steps}
    wrapped = {'type': 'RepeatDataset', 'times': 2, 'dataset': dataset}
    return Config({'model': {'type': 'Any'}, 'test_dataloader': {'dataset': wrapped}})


@pytest.fixture
def sixteen_bits(tmp_path):
    """A 16-bit image, and the file of the data set, beside it."""
    pixels = np.random.default_rng(0).integers(0, 4096, (20, 30, 3)).astype(np.uint16)
    cv2.imwrite(str(tmp_path / 'new.png'), pixels)
    (tmp_path / 'list.txt').touch()
    return pixels


def test_images_are_read_by_the_pipeline_without_annotations(sixteen_bits, tmp_path):
    reader = open_reader(
        own_config(tmp_path, [dict(type='ScaledLoader'), *ANNOTATIONS, dict(type='Pack')])
    )
    image = reader.load(tmp_path / 'new.png')
    assert (image.pixels == sixteen_bits / 16).all()  # as loaded, though a step wrote into it
    assert (image.item['inputs'].numpy() == sixteen_bits / 16 - 1).all()
    assert image.picture.dtype == np.uint8
    assert (image.picture == (sixteen_bits[..., ::-1] / 16).astype(np.uint8)).all()
    assert reader.metainfo['classes'] == ('one', 'two')
    assert '.npy' in reader.suffixes and '.jpg' in reader.suffixes


def test_annotations_inside_of_test_time_augmentation(sixteen_bits, tmp_path):
    views = [[dict(type='ScaledLoader')], ANNOTATIONS, [dict(type='Pack'), dict(type='Pack')]]
    reader = open_reader(own_config(tmp_path, [dict(type='TestTimeAug', transforms=views)]))
    image = reader.load(tmp_path / 'new.png')
    assert (image.pixels == sixteen_bits / 16).all()
    assert len(image.item['inputs']) == 2
    assert (image.plain_view()['inputs'].numpy() == sixteen_bits / 16 - 1).all()


def test_an_image_of_the_data_set_has_all_that_is_said_of_it(sixteen_bits, tmp_path):
    infos = open_reader(own_config(tmp_path, [dict(type='Pack')]))._infos
    known = infos.of(tmp_path / 'b.npy')
    assert (known['img_id'], known['offset'], known['gain']) == (8, 2, 16.0)
    new = infos.of(tmp_path / 'c.npy')
    assert new == {'img_path': f'{tmp_path}/c.npy', 'img_id': 0, 'gain': 16.0}


def test_what_the_pipeline_cannot_load(sixteen_bits, tmp_path):
    steps = [dict(type='ScaledLoader'), dict(type='Pack')]
    with pytest.raises(UsageError, match=r"^ScaledLoader: AttributeError: 'NoneType'"):
        open_reader(own_config(tmp_path, steps)).load(tmp_path / 'list.txt')
    (tmp_path / 'list.txt').unlink()
    reader = open_reader(own_config(tmp_path, steps))  # the data may be absent
    assert reader.metainfo['classes'] == ('one', 'two')
    with pytest.raises(UsageError, match=r"^ScaledLoader: KeyError: 'gain'"):
        reader.load(tmp_path / 'new.png')
    with pytest.raises(UsageError, match=r'expected a step that sets img and one that returns in'):
        open_reader(own_config(tmp_path, ANNOTATIONS)).load(tmp_path / 'new.png')
    with pytest.raises(UsageError, match=r'test_dataloader\.dataset\.pipeline'):
        open_reader(own_config(tmp_path, []))


@pytest.mark.parametrize(
    ('pixels', 'colour'),
    [
        (np.full((4, 5), 9, np.uint8), (9, 9, 9)),
        (np.full((4, 5, 2), (9, 7), np.uint8), (9, 9, 9)),
        (np.full((4, 5, 4), (1, 2, 3, 4), np.uint8), (3, 2, 1)),
        (np.full((4, 5, 3), (1.0, 2.0, 3.0), np.float32), (3, 2, 1)),
        (np.full((4, 5, 3), (0, 1000, 2000), np.uint16), (255, 127, 0)),
        (np.full((4, 5, 3), (0.0, 0.5, 1.0), np.float32), (255, 127, 0)),
        (np.full((4, 5, 3), (-1.0, np.nan, 1.0), np.float32), (255, 127, 0)),
    ],
)
def test_the_picture_to_draw_on(pixels, colour):
    picture = LoadedImage(pixels, {}).picture
    assert picture.dtype == np.uint8
    assert (picture == np.array(colour)).all()
    assert picture.shape == (4, 5, 3)


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
    note = sixteen_bits_note(stored(tmp_path, values))
    assert note.startswith('the largest value of the first 16-bit images (0.png …) is 15 of 255 ')
    unchanged = [(path, cv2.imread(str(path), -1)) for path in tmp_path.iterdir()]
    assert sixteen_bits_note(unchanged) is None
    small = [(path, pixels // 10) for path, pixels in unchanged]
    note = sixteen_bits_note(small)
    assert ' of 65535 as loaded; ' in note


def test_one_bright_image_is_enough(tmp_path):
    values = np.zeros((3, 20, 30, 3), np.uint16)
    values[1, 5, 5] = 40_000
    assert sixteen_bits_note(stored(tmp_path, values)) is None


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
def test_dark_images_of_eight_bits_are_no_fault(dtype, tmp_path):
    dark = np.random.default_rng(0).integers(0, 14, (2, 20, 30, 3)).astype(np.uint8)
    images = [(path, pixels.astype(dtype)) for path, pixels in stored(tmp_path, dark)]
    assert sixteen_bits_note(images) is None


@pytest.mark.parametrize('shape', [(20, 30), (20, 30, 1), (20, 30, 4)])
def test_other_channels_are_named_once(shape):
    channels = shape[2] if len(shape) == 3 else 1
    images = [('a.tif', np.full(shape, 200, np.uint8))] * 2
    note = channels_note(images, 3)
    expected = f'expected 3 channels (model.backbone.in_channels), got {channels} from '
    remedy = "set in_channels, or color_type of that step and imdecode_backend='tifffile'"
    assert note == f'{expected}the step that loads a.tif; {remedy}'
    assert channels_note(images, channels) is None
