"""Images of every mode are read, broken ones are reported, and random numbers depend on the key alone."""

import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch.testing import assert_close

from mmpola.data.class_folders import ClassFolders
from mmpola.data.read_image import rgb_image
from mmpola.engine.seeding import SampleKey, SeededDataset

PLAIN = {'input_size': 8, 'interpolation': 'bilinear', 'crop_pct': 1.0, 'mean': (0, 0, 0), 'std': (1, 1, 1)}
RECIPE = {
    'input_size': 16,
    'interpolation': 'bicubic',
    'auto_augment': 'rand-m9-mstd0.5-inc1',
    're_prob': 0.9,
    're_mode': 'pixel',
}


def one_class(folder, **images):
    """Write files of one class by name; Pillow images are encoded, bytes are written as they are."""
    (folder / 'a').mkdir(parents=True)
    for name, image in images.items():
        path = folder / 'a' / name.replace('_', '.')
        path.write_bytes(image) if isinstance(image, bytes) else image.save(path)
    return str(folder)


def test_an_item_is_the_normalised_image_its_label_and_its_path(colours):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = {'type': 'mmpola.ClassFolders', 'root': f'{colours}/val', 'training': False}
    data = DATASETS.build({**config, 'transform': {'input_size': 36, 'crop_pct': 1.0, 'interpolation': 'bicubic'}})
    item = data[4]
    path = f'{colours}/val/green/1.png'
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy())[2:38].permute(2, 0, 1) / 255  # 40 x 36, cropped
    assert_close(item['inputs'], (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])
    assert (item['data_samples'].gt_label, item['data_samples'].img_path) == (1, path)
    assert data.metainfo == {'classes': ('blue', 'green', 'red')}
    assert len(data) == 9


grey = Image.fromarray(np.full((9, 9), 100, np.uint8))
deep = Image.fromarray(np.full((9, 9), 100 * 256 + 7, np.uint16))
colour = Image.new('RGB', (9, 9), (100, 100, 100))
see_through = Image.new('RGBA', (9, 9), (100, 100, 100, 30))


@pytest.mark.parametrize(
    ('name', 'image'),
    [
        ('grey.png', grey),
        ('deep.png', deep),
        ('deep.tif', deep),
        ('wide.tif', Image.fromarray(np.full((9, 9), 100 * 256, np.int32))),
        ('bits.png', grey.convert('1')),
        ('palette.png', colour.convert('P')),
        ('palette_alpha.png', see_through.quantize(4)),
        ('alpha.png', see_through),
        ('grey_alpha.png', grey.convert('LA')),
        ('ink.jpg', colour.convert('CMYK')),
        ('ink.tif', colour.convert('CMYK')),
        ('photo.JPEG', colour),
        ('web.webp', colour),
        ('dot.png', colour.crop((0, 0, 1, 1))),
    ],
)
def test_images_of_any_mode_are_read_as_rgb(name, image, tmp_path):
    path = tmp_path / name
    image.save(path)
    found = rgb_image(path.read_bytes())
    assert (found.mode, found.size) == ('RGB', image.size)
    if image.mode != '1':
        assert np.abs(np.asarray(found).astype(int) - 100).max() <= 2
    (tmp_path / 'a').mkdir()
    path.rename(tmp_path / 'a' / name)
    for training, size in ((True, 16), (False, 8)):
        transform = RECIPE if training else PLAIN
        assert ClassFolders(str(tmp_path), training=training, transform=transform)[0]['inputs'].shape == (3, size, size)


@pytest.fixture
def broken(tmp_path):
    """Ten images: 1 is empty, 2 is truncated, 3 is not an image."""
    pictures = {f'{i}_png': Image.new('RGB', (9, 9), (i, i, i)) for i in range(10)}
    folder = one_class(tmp_path / 'broken', **pictures)
    (tmp_path / 'broken/a/1.png').write_bytes(b'')
    whole = (tmp_path / 'broken/a/2.png').read_bytes()
    (tmp_path / 'broken/a/2.png').write_bytes(whole[: len(whole) // 2])
    (tmp_path / 'broken/a/3.png').write_bytes(b'<html>404</html>')
    return folder


def test_in_training_the_next_readable_image_replaces_a_broken_one(broken):
    data = ClassFolders(broken, training=True, transform={**PLAIN, 'no_aug': True} | {'crop_pct': None})
    item = data[1]
    assert item['data_samples'].img_path == f'{broken}/a/4.png'
    assert item['data_samples'].unreadable == tuple(f'{broken}/a/{i}.png' for i in (1, 2, 3))
    assert_close(item['inputs'], torch.full((3, 8, 8), 4 / 255))
    assert 'unreadable' not in data[4]['data_samples']


def test_in_evaluation_a_blank_image_replaces_a_broken_one(broken):
    item = ClassFolders(broken, training=False, transform=PLAIN)[2]
    assert item['data_samples'].img_path == f'{broken}/a/2.png'
    assert item['data_samples'].unreadable == (f'{broken}/a/2.png',)
    assert_close(item['inputs'], torch.zeros(3, 8, 8))


@pytest.mark.parametrize('training', [True, False])
def test_strict_raises_for_a_broken_image(training, broken):
    data = ClassFolders(broken, training=training, transform=PLAIN, strict=True)
    with pytest.raises(OSError) as raised:
        data[3]
    assert str(raised.value).startswith(f'{broken}/a/3.png: cannot be read (UnidentifiedImageError(')


def test_many_unreadable_images_in_a_row_raise(tmp_path):
    root = one_class(tmp_path / 'gone', **{f'{i:02}_png': b'' for i in range(20)})
    with pytest.raises(OSError) as raised:
        ClassFolders(root, training=True, transform=PLAIN)[10]
    assert str(raised.value).startswith(f'16 images in a row cannot be read, the last is {root}/a/05.png (')


def test_random_transforms_depend_on_the_draw_alone(colours):
    data = SeededDataset(ClassFolders(f'{colours}/train', training=True, transform=RECIPE))
    one, same, later, seed = (data[SampleKey(3, *numbers)]['inputs'] for numbers in ((0, 5), (0, 5), (0, 6), (1, 5)))
    assert torch.equal(one, same)
    assert not torch.equal(one, later)
    assert not torch.equal(one, seed)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(ValueError) as raised:
        ClassFolders(f'{tmp_path}/train', training=True, transform=RECIPE)
    assert str(raised.value) == f'{tmp_path}/train: no such folder or file'


@pytest.mark.real_data
def test_every_real_image_is_read(real_data):
    data = ClassFolders(
        f'{real_data}/imagenet_mini/val', training=False, transform=PLAIN, classes=f'{real_data}/imagenet_mini/train'
    )
    assert len(data) == 409
    means = [data[i]['inputs'].mean().item() for i in range(0, len(data), 9)]
    assert 0.3 < np.mean(means) < 0.6
    assert not any('unreadable' in data[i]['data_samples'] for i in range(0, len(data), 40))
