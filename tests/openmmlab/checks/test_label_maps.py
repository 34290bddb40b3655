"""Problems of data sets of label maps, on generated data with one error each."""

import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from PIL import Image

from mmpola.openmmlab.checks import check_data
from tests.helpers.refusals import errors, only, warnings


def change(folder, function, count=None):
    """Replace label maps, or the first `count` of them, by what a function makes of the array."""
    for path in sorted(folder.iterdir())[:count]:
        Image.fromarray(function(np.array(Image.open(path)))).save(path)


@pytest.fixture
def maps(ade):
    """The folder of the training label maps: 0 no label, 1 … 6 classes."""
    return ade / 'annotations' / 'training'


@pytest.fixture
def binary(segmentation, ade, maps):
    """A config with two classes, whose label maps are 0 and 1."""
    val = ade / 'annotations' / 'validation'
    segmentation.val_dataloader.dataset.data_root = str(ade)
    for split in ('train', 'val', 'test'):
        dataset = segmentation[f'{split}_dataloader'].dataset
        dataset.type = 'BaseSegDataset'
        dataset.reduce_zero_label = False
        dataset.metainfo = dict(classes=('ground', 'thing'), palette=[[0, 0, 0], [9, 9, 9]])
        dataset.img_suffix = '.jpg'
        dataset.seg_map_suffix = '.png'
        for step in dataset.pipeline:
            if step.type == 'LoadAnnotations':
                step.reduce_zero_label = False
    segmentation.model.decode_head.num_classes = 2
    for folder in (maps, val):
        change(folder, lambda labels: (labels > 0).astype(np.uint8))
    return segmentation


def test_labels_beyond_the_classes_are_found_by_the_fast_check(segmentation, ade, maps):
    first, second, third, *_ = sorted(maps.iterdir())
    for path, label in ((first, 200), (second, 7), (third, 255)):  # 255 is ignored
        labels = np.array(Image.open(path))
        labels[:2, :3] = label
        Image.fromarray(labels).save(path)
    text = only(errors(segmentation), 'map-labels')
    assert text.endswith(f'(2): {first} (label 200), {second} (label 7)')


def test_a_label_more_than_there_are_classes(binary, maps):
    change(maps, lambda labels: labels * 2, count=1)
    text = only(errors(binary), 'map-labels')
    assert text.endswith(f'(1): {min(maps.iterdir())} (label 2)')
    assert 'if 2 is no label, set ignore_index=2' in text
    assert 'reduce_zero_label=True' in text
    change(maps, lambda labels: labels * 2, count=1)
    text = only(errors(binary), 'map-labels')
    assert text.endswith(f'(1): {min(maps.iterdir())} (label 4)')
    assert 'reduce_zero_label=True' not in text


@pytest.mark.parametrize('whole', [False, True])
def test_masks_of_0_and_255(whole, binary, maps):
    assert not warnings(binary, whole=whole)
    change(maps, lambda labels: labels * 255)
    assert '255 is no label' in only(errors(binary, whole=whole), 'nothing-to-learn')


def test_reduce_zero_label_where_labels_start_at_0(binary):
    dataset = binary.train_dataloader.dataset
    dataset.reduce_zero_label = True
    for step in dataset.pipeline:
        if step.type == 'LoadAnnotations':
            step.reduce_zero_label = True
    assert 'set it to False' in only(errors(binary), 'nothing-to-learn')


def test_a_rare_class_is_looked_for_in_all_label_maps(binary, maps, monkeypatch):
    monkeypatch.setattr('mmpola.openmmlab.checks.samples.FEW', 2)
    change(maps, np.zeros_like)
    Image.fromarray(np.eye(80, 96, dtype=np.uint8)).save(max(maps.iterdir()))
    (data,), found, *_ = check_data(binary, ('train',))
    assert not found
    assert data.images_counted == 12


def test_label_maps_of_two_kinds_take_turns(binary, maps, monkeypatch):
    monkeypatch.setattr('mmpola.openmmlab.checks.samples.FEW', 6)
    for path in sorted(maps.iterdir())[1::2]:
        change_one(path)
    assert 'label 99' in only(errors(binary), 'map-labels')


def test_a_class_without_a_pixel(segmentation, maps):
    change(maps, lambda labels: np.where(labels == 3, 0, labels).astype(np.uint8))
    assert only(warnings(segmentation), 'absent-classes').endswith(': triangle')


def test_the_ignore_index_of_the_data_set_is_not_read(binary, maps):
    def void(labels):
        labels[:4] = 250
        return labels

    change(maps, void)
    binary.train_dataloader.dataset.ignore_index = 250
    text = only(errors(binary), 'map-labels')
    assert 'nothing reads ignore_index=250 of the data set' in text
    assert 'label 250' in text
    binary.model.decode_head.ignore_index = 250
    text = only(warnings(binary, ('train', 'val')), 'evaluator-ignore-index')
    assert text.startswith('val_evaluator.ignore_index: expected 250')
    binary.val_evaluator.ignore_index = 250
    assert not warnings(binary, ('val',))


def test_colours_palettes_and_16_bits(binary, maps):
    palette, colours, wide, *_ = sorted(maps.iterdir())
    indexed = Image.open(palette).convert('P')
    indexed.putpalette([0, 0, 0, 200, 30, 30])
    indexed.putdata(list(Image.open(palette).getdata()))
    indexed.save(palette)  # its values are class numbers
    assert not warnings(binary)
    Image.new('RGB', (96, 80)).save(colours)
    Image.fromarray(np.full((80, 96), 256, np.uint16)).save(wide)
    (first, one), (second, other) = errors(binary)
    assert (first, second) == ('map-colours', 'map-bits')
    assert one.endswith(f'(1): {colours} (3 channels)')
    assert other.endswith(f'(1): {wide} (labels above 255)')


class LoadArray(BaseTransform):
    """A loader of somebody's own, for label maps that are files of NumPy."""

    def transform(self, results):
        """Load a label map."""
        results['gt_seg_map'] = np.load(results['seg_map_path'])
        results['seg_fields'].append('gt_seg_map')
        return results


def test_a_loader_of_ones_own(binary, maps):
    for path in list(maps.iterdir()):
        np.save(path.with_suffix('.npy'), np.array(Image.open(path)))
        path.unlink()
    dataset = binary.train_dataloader.dataset
    dataset.seg_map_suffix = '.npy'
    dataset.pipeline[1] = dict(type=LoadArray)
    (data,), found, *_ = check_data(binary, ('train',), whole=True)
    assert not found
    assert data.labels.total == 12 * 80 * 96
    assert data.labels.numbers[1] > 0


class LoadThousands(BaseTransform):
    """A loader of somebody's own, for files of 16 bits: a thousand times the class."""

    def transform(self, results):
        """Load a label map."""
        file = np.array(Image.open(results['seg_map_path']))
        results['gt_seg_map'] = (file // 1000).astype(np.uint8)
        results['seg_fields'].append('gt_seg_map')
        return results


class LoadSeveral(BaseTransform):
    """A loader of somebody's own, for several labels a pixel."""

    def transform(self, results):
        """Load six label maps."""
        file = np.array(Image.open(results['seg_map_path']))
        results['gt_seg_map'] = np.stack([file] * 6, axis=-1)
        results['seg_fields'].append('gt_seg_map')
        return results


@pytest.mark.parametrize('loader', [LoadThousands, LoadSeveral])
def test_what_was_loaded_counts_and_not_the_file(loader, binary, maps):
    if loader is LoadThousands:
        for path in maps.iterdir():
            labels = np.array(Image.open(path)).astype(np.uint16)
            Image.fromarray(labels * 1000 + 7 * labels).save(path)
        only(errors(binary), 'map-bits')
    binary.train_dataloader.dataset.pipeline[1] = dict(type=loader)
    (data,), found, *_ = check_data(binary, ('train',), whole=True)
    assert not found
    assert data.labels.unit == ('pixels' if loader is LoadThousands else '')


def test_a_fault_is_told_once(binary, maps, monkeypatch):
    monkeypatch.setattr('mmpola.openmmlab.checks.samples.FEW', 4)
    change(maps, np.zeros_like)
    for path in sorted(maps.iterdir())[:2]:
        change_one(path)
    # The few samples have one class only, so that all are loaded.
    assert '(2): ' in only(errors(binary), 'map-labels')


def change_one(path):
    """Write a label into a label map that no class has."""
    labels = np.array(Image.open(path))
    labels[0, 0] = 99
    Image.fromarray(labels).save(path)


def test_files_of_the_wrong_kind(segmentation, ade, maps):
    small, broken, *_ = sorted(maps.iterdir())
    image = sorted((ade / 'images' / 'training').iterdir())[3]
    Image.new('L', (48, 40)).save(small)
    broken.write_bytes(b'')
    image.write_bytes(b'')
    (first, unreadable), (second, size) = errors(segmentation)
    assert (first, second) == ('samples-unreadable', 'map-size')
    assert unreadable.endswith(f'(2): {broken} (empty file), {image} (empty file)')
    assert size.endswith(f'(1): {small} (48 x 40 pixels, but its image 96 x 80)')


def test_images_have_label_maps(segmentation, ade, maps):
    images = ade / 'images' / 'training'
    first = min(maps.iterdir())
    first.unlink()
    assert only(errors(segmentation), 'images-missing').endswith(f'(1): {first}')
    for path in list(images.iterdir()):
        path.rename(path.with_suffix('.jpeg'))
    names = ', '.join(sorted(path.name for path in images.iterdir())[:5])
    assert only(errors(segmentation), 'no-images').endswith(f'got {names} and 7 more')


def test_images_with_another_suffix(segmentation, ade):
    for path in sorted((ade / 'images' / 'training').iterdir())[:4]:
        path.rename(path.with_suffix('.JPG'))
    assert only(warnings(segmentation), 'suffix').startswith(f'{ade}/images/training: 4 files')


def test_padding_to_many_times_the_pixels(segmentation):
    segmentation.model.data_preprocessor.size = (512, 512)
    assert 'got 512 x 512' in only(warnings(segmentation), 'padding')


def test_label_maps_in_a_lossy_format(binary, maps):
    for path in list(maps.iterdir()):
        labels = np.array(Image.open(path))
        Image.fromarray(labels).save(path.with_suffix('.jpg'), quality=100)
        path.unlink()
    binary.train_dataloader.dataset.seg_map_suffix = '.jpg'
    assert 'write PNG' in only(errors(binary), 'map-labels')
    for path in list(maps.iterdir()):
        Image.new('L', (96, 80)).save(path)
    labels = np.zeros((80, 96), np.uint8)
    labels[:40] = 1
    Image.fromarray(labels).save(path, quality=100)
    only(warnings(binary), 'map-lossy')
