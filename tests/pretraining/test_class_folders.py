"""Folders give images, labels and clear errors; images of every mode are read."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from PIL import Image
from torch.testing import assert_close

from mmpola.images import rgb_image
from mmpola.openmmlab.run.seeding import SampleKey, SeededDataset
from mmpola.pretraining.class_folders import (
    IMAGENET,
    ClassFolders,
    UnlabelledImages,
    class_names,
)
from mmpola.pretraining.data_config import class_source

PLAIN_TRANSFORM = {
    'input_size': 8,
    'interpolation': 'bilinear',
    'crop_pct': 1.0,
    'mean': (0, 0, 0),
    'std': (1, 1, 1),
}
RECIPE = {
    'input_size': 16,
    'interpolation': 'bicubic',
    'auto_augment': 'rand-m9-mstd0.5-inc1',
    're_prob': 0.9,
    're_mode': 'pixel',
}


def fill(folder, classes):
    """Write empty files of each class."""
    for name, files in classes.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            (folder / name / file).parent.mkdir(exist_ok=True)
            (folder / name / file).touch()
    return folder


@pytest.fixture
def tree(tmp_path):
    return fill(
        tmp_path / 'tree', {'10': ['b.JPEG', 'deep/c.png'], '2': ['a.jpg', '.a.jpg', 'notes.txt']}
    )


def build(root, classes=None, training=False):
    if isinstance(classes, Path):
        classes = str(classes)
    return ClassFolders(str(root), training=training, transform=PLAIN_TRANSFORM, classes=classes)


def listed(data):
    """(class, path) of every image."""
    found = [data.get_data_info(index) for index in range(len(data))]
    return [
        (data.metainfo['classes'][one['gt_label']], one['img_path'].removeprefix(data.root))
        for one in found
    ]


EXPECTED = [('2', '/2/a.jpg'), ('10', '/10/b.JPEG'), ('10', '/10/deep/c.png')]


def test_folders_are_classes_in_natural_order(tree):
    data = build(tree)
    assert data.metainfo['classes'] == ('2', '10')
    assert listed(data) == EXPECTED
    assert data.notes == []


def test_files_that_are_left_out_by_their_suffix_are_noted(tree):
    for name in ('2/a.gif', '10/deep/d.heic', '10/deep/e.heic', '10/f.jfif'):
        (tree / name).touch()
    note = f'{tree}: left out: 3 files (.gif, .heic)'
    data = build(tree)
    assert (len(data), data.notes) == (4, [note])
    unlabelled = UnlabelledImages(str(tree), training=False, transform=PLAIN_TRANSFORM)
    assert (len(unlabelled), unlabelled.notes) == (4, [note])


class Listed(BaseDataset):
    """MMEngine's data set of the same images, whose `indices` ours follow."""

    def load_data_list(self):
        return [{'img_path': f'{name}{path}'} for name, path in EXPECTED]


@pytest.mark.parametrize('indices', [1, 2, 7, -1, -7, [2, 0], (-1, 1), [1, 1]])
def test_a_part_of_the_images_is_that_of_mmengine_and_all_classes_stay(indices, tree):
    data = ClassFolders(str(tree), training=False, transform=PLAIN_TRANSFORM, indices=indices)
    expected = Listed(indices=indices, serialize_data=False)
    paths = [expected[index]['img_path'] for index in range(len(expected))]
    assert [f'{name}{path}' for name, path in listed(data)] == paths
    assert len(data) == len(paths)
    assert data.metainfo['classes'] == ('2', '10')


def test_links_to_folders_and_images_are_followed(tree, tmp_path):
    linked = tmp_path / 'linked'
    (linked / '10').mkdir(parents=True)
    (linked / '2').symlink_to(tree / '2')
    for name in ('b.JPEG', 'deep'):
        (linked / '10' / name).symlink_to(tree / '10' / name)
    assert listed(build(linked)) == EXPECTED


@pytest.mark.parametrize(
    ('link', 'target'),
    [('10/up', '..'), ('10/again', 'deep'), ('2/other', '../10'), ('20', '10')],
)
def test_a_folder_that_links_reach_twice_is_refused(link, target, tree):
    (tree / link).symlink_to(target)
    with pytest.raises(ValueError, match=re.escape(f'{tree}: expected every folder once')):
        build(tree)


def test_labels_follow_the_classes_of_the_other_folder(tree, tmp_path):
    (tmp_path / 'classes.txt').write_text('10\n\n2\n')
    assert build(tree, tree).labels.tolist() == [0, 1, 1]
    assert build(tree, tmp_path / 'classes.txt').labels.tolist() == [0, 0, 1]
    assert class_names(str(tmp_path / 'classes.txt')) == ['10', '2']


def test_some_classes_of_imagenet_keep_its_labels(tmp_path):
    val = fill(tmp_path / 'val', {'n02102040': ['a.jpg'], 'n01440764': ['a.jpg']})
    data = build(val, IMAGENET)
    assert (data.labels.tolist(), len(data.metainfo['classes'])) == ([0, 217], 1000)
    fill(val, {'dogs': ['a.jpg']})
    with pytest.raises(ValueError, match='got folders of others: dogs'):
        build(val, IMAGENET)


def test_a_thousand_classes_are_those_of_imagenet_unless_the_data_has_as_many(tmp_path):
    folder = tmp_path / 'train'
    names = tmp_path / 'names.txt'
    for number in range(1000):
        (folder / f'class {number}').mkdir(parents=True)
    names.touch()
    for dataset in ({'classes': str(folder)}, {'classes': str(names)}, {'root': str(folder)}):
        assert class_source(dataset, 1000) == next(iter(dataset.values()))
    (folder / 'class 0').rmdir()
    for dataset in ({'classes': 'none'}, {'classes': str(folder)}, {'root': str(folder)}, {}):
        assert class_source(dataset, 1000) == IMAGENET
    assert class_source({'root': str(folder), 'classes': None}, 999) == str(folder)


def test_names_of_classes_may_be_given(tree):
    assert build(tree, ['10', '2']).labels.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match=f'^{tree}: no images of 2 of 4 classes: 1, 3$'):
        build(tree, ['1', '2', '3', '10'], training=True)
    assert class_source({'root': str(tree), 'classes': ['10', '2']}, 2) == ['10', '2']


def test_names_that_are_not_utf8_are_read(tmp_path):
    path = os.fsencode(tmp_path / 'a') + b'/\xff\xe9.png'
    (tmp_path / 'a').mkdir()
    with open(path, 'wb') as file:
        colour.save(file, 'png')
    assert os.fsencode(build(tmp_path)[0]['data_samples'].img_path) == path


PROBLEMS = {
    'flat': ({'': ['a.jpg']}, None, 'got images directly in the folder'),
    'nothing': ({'': []}, None, 'expected images .* got none'),
    'empty class': ({'a': ['x.jpg'], 'b': [], 'c': ['x.txt']}, None, ': b, c'),
    'missing class': ({'a': ['x.jpg']}, ['a', 'b'], ' of 2 classes: b'),
    'class named twice': ({'a': ['x.jpg']}, ['a', 'a'], ' of 2 classes: a'),
    'more classes': ({'a': ['x.jpg'], 'b': ['x.jpg'], 'c': []}, ['a'], 'got folders .*: b, c'),
}
"""Case -> files by class, the names of the classes, the problem."""


@pytest.mark.parametrize('case', PROBLEMS)
def test_problems(case, tmp_path):
    files, classes, problem = PROBLEMS[case]
    root = fill(tmp_path / 'root', files)
    with pytest.raises(ValueError, match=f'^{root}: .*{problem}'):
        build(root, classes, training=True)


@pytest.mark.parametrize('with_folder', [False, True])
def test_evaluation_without_some_of_the_classes(with_folder, tree):
    names = ['1', '2', '3', '10']
    if with_folder:
        (tree / '3').mkdir()
    data = build(tree, names)
    assert listed(data) == EXPECTED
    assert data.labels.tolist() == [1, 3, 3]
    (note,) = data.notes
    assert note.startswith(f'{tree}: no images of 2 of 4 classes')
    assert ': 1, 3; ' in note
    with pytest.raises(ValueError, match='got folders of others: 2'):
        build(tree, ['1', '3', '10'])


def test_evaluation_with_every_class_has_no_notes(tree):
    assert build(tree, ['10', '2']).notes == []
    assert build(tree).notes == []


def test_an_item_is_the_normalised_image_its_label_and_its_path(colours):
    mean = torch.tensor((0.485, 0.456, 0.406))[:, None, None]
    std = torch.tensor((0.229, 0.224, 0.225))[:, None, None]
    config = {'type': 'mmpola.ClassFolders', 'root': f'{colours}/val', 'training': False}
    data = DATASETS.build(
        {**config, 'transform': {'input_size': 36, 'crop_pct': 1.0, 'interpolation': 'bicubic'}}
    )
    item = data[4]
    path = f'{colours}/val/green/1.png'
    image = torch.from_numpy(np.asarray(Image.open(path)).copy())  # 40 x 36 pixels
    cropped = image[2:38].permute(2, 0, 1) / 255
    assert_close(item['inputs'], (cropped - mean) / std)
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
    for training, transform, size in ((True, RECIPE, 16), (False, PLAIN_TRANSFORM, 8)):
        data = ClassFolders(str(tmp_path), training=training, transform=transform)
        assert data[0]['inputs'].shape == (3, size, size)


def test_an_exif_rotation_is_not_applied(tmp_path):
    rotated = Image.new('RGB', (2, 1), (100, 100, 100))
    exif = rotated.getexif()
    exif[0x0112] = 6
    rotated.save(tmp_path / 'rotated.jpg', exif=exif)
    assert rgb_image((tmp_path / 'rotated.jpg').read_bytes()).size == (2, 1)


@pytest.mark.parametrize('content', ['empty', 'truncated', 'text', 'missing'])
def test_an_image_that_cannot_be_read_is_named(content, colours, tmp_path):
    shutil.copytree(colours / 'val' / 'red', tmp_path / 'red')
    path = tmp_path / 'red' / '1.png'
    data = build(tmp_path)
    whole = path.read_bytes()
    broken = {'empty': b'', 'truncated': whole[: len(whole) // 2], 'text': b'<html>404</html>'}
    if content == 'missing':
        path.unlink()
    else:
        path.write_bytes(broken[content])
    data[0]
    with pytest.raises(OSError, match=f'^{path}: expected an image that can be read, got '):
        data[1]


def test_random_transforms_depend_only_on_the_draw(colours):
    data = SeededDataset(ClassFolders(f'{colours}/train', training=True, transform=RECIPE))
    one = data[SampleKey(3, 0, 5)]['inputs']
    assert torch.equal(one, data[SampleKey(3, 0, 5)]['inputs'])
    assert not torch.equal(one, data[SampleKey(3, 0, 6)]['inputs'])
    assert not torch.equal(one, data[SampleKey(3, 1, 5)]['inputs'])


def test_sub_folders_are_read_in_the_order_of_their_names(tmp_path, monkeypatch):
    """A file system may list them in any order; the seeded order of training would follow it."""
    for folder in ('a', 'b', 'c'):
        (tmp_path / 'only' / folder).mkdir(parents=True)
        Image.new('RGB', (8, 8)).save(tmp_path / 'only' / folder / 'image.png')
    walk = os.walk

    def backwards(*arguments, **options):
        for folder, inner, files in walk(*arguments, **options):
            inner.sort(reverse=True)
            yield folder, inner, files

    monkeypatch.setattr(os, 'walk', backwards)
    data = ClassFolders(str(tmp_path), training=False, transform=PLAIN_TRANSFORM)
    read = [data.get_data_info(number)['img_path'] for number in range(len(data))]
    assert read == [str(tmp_path / 'only' / folder / 'image.png') for folder in 'abc']


def test_what_a_notebook_leaves_in_a_class_folder_is_not_read(colours, tmp_path):
    root = shutil.copytree(colours / 'train', tmp_path / 'train')
    copies = root / 'red' / '.ipynb_checkpoints'
    copies.mkdir()
    shutil.copy(root / 'red' / '0.png', copies / '0-checkpoint.png')
    dataset = ClassFolders(str(root), training=False, transform=dict(input_size=32))
    assert len(dataset) == 24
