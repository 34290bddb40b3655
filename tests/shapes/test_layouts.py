"""The three layouts hold what the scenes show."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from mmpola.shapes import CLASSES, draw_scene

SPLITS = {'train': (40, 'training'), 'val': (8, 'validation')}


@pytest.fixture(scope='module', params=SPLITS)
def split(request) -> str:
    return request.param


@pytest.fixture(scope='module')
def coco(shapes_set: Path, split: str) -> COCO:
    return COCO(shapes_set / 'coco' / 'annotations' / f'instances_{split}2017.json')


def test_coco_lists_every_image_with_its_size(shapes_set, split, coco):
    files = {path.name for path in (shapes_set / 'coco' / f'{split}2017').iterdir()}
    assert {image['file_name'] for image in coco.dataset['images']} == files
    assert len(files) == SPLITS[split][0]
    for image in coco.dataset['images']:
        assert Image.open(shapes_set / 'coco' / f'{split}2017' / image['file_name']).size == (192, 160)
        assert (image['width'], image['height']) == (192, 160)


def test_coco_has_what_readers_expect(coco):
    assert set(coco.dataset) == {'info', 'licenses', 'images', 'categories', 'annotations'}
    assert [(c['id'], c['name'], c['supercategory']) for c in coco.dataset['categories']] == [
        (number, name, 'shape') for number, name in enumerate(CLASSES, start=1)
    ]
    ids = [annotation['id'] for annotation in coco.dataset['annotations']]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 1  # COCOeval treats id 0 as 'no match'


def test_coco_annotations_are_the_visible_parts_of_the_scenes(coco):
    for image_id in coco.getImgIds():
        scene = draw_scene(seed=0, index=image_id - 1)
        annotations = coco.loadAnns(coco.getAnnIds(image_id))
        assert len(annotations) == len(scene.instances)
        for annotation, instance in zip(annotations, scene.instances, strict=True):
            mask = coco.annToMask(annotation).astype(bool)
            iou = (mask & instance.mask).sum() / (mask | instance.mask).sum()
            assert iou == 1 if instance.iscrowd else iou >= 0.9
            assert annotation['category_id'] == instance.class_index + 1
            assert annotation['iscrowd'] == instance.iscrowd
            assert isinstance(annotation['segmentation'], dict if instance.iscrowd else list)
            assert annotation['area'] == instance.mask.sum()
            rows, columns = np.nonzero(instance.mask)
            x, y, width, height = annotation['bbox']
            assert (x, y, x + width - 1, y + height - 1) == (columns.min(), rows.min(), columns.max(), rows.max())


def test_coco_has_crowds_empty_images_and_small_objects(shapes_set):
    content = json.loads((shapes_set / 'coco/annotations/instances_train2017.json').read_text())
    annotations = content['annotations']
    assert any(annotation['iscrowd'] for annotation in annotations)
    assert any(annotation['area'] < 150 for annotation in annotations)
    assert {image['id'] for image in content['images']} - {annotation['image_id'] for annotation in annotations}


def test_no_validation_image_is_a_training_image(shapes_set):
    train, val = (
        {path.read_bytes() for path in (shapes_set / 'coco' / f'{split}2017').iterdir()} for split in ('train', 'val')
    )
    assert len(train) == 40
    assert len(val) == 8
    assert not train & val


def test_saved_images_show_the_scenes(shapes_set):
    for index in range(5):
        saved = np.asarray(Image.open(shapes_set / 'coco' / 'train2017' / f'{index + 1:012d}.jpg'))
        difference = saved.astype(float) - draw_scene(0, index).image
        assert np.abs(difference).mean() < 8  # JPEG's loss; swapped colour channels would be several times that


def test_label_maps_hold_the_same_masks(shapes_set, split):
    count, folder = SPLITS[split]
    maps = sorted((shapes_set / 'ade' / 'annotations' / folder).iterdir())
    assert len(maps) == count
    for path in maps:
        image = Image.open(path)
        labels = np.asarray(image)
        assert image.mode == 'L'
        expected = np.zeros((160, 192), np.uint8)
        for instance in draw_scene(seed=0, index=int(path.stem) - 1).instances:
            expected[instance.mask] = instance.class_index + 1
        assert np.array_equal(labels, expected)
        photo = shapes_set / 'ade' / 'images' / folder / f'{path.stem}.jpg'
        assert photo.read_bytes() == (shapes_set / 'coco' / f'{split}2017' / photo.name).read_bytes()


def test_class_folders_are_complete(shapes_set, split):
    folders = {folder.name: list(folder.iterdir()) for folder in (shapes_set / 'classes' / split).iterdir()}
    assert set(folders) == set(CLASSES)
    for crops in folders.values():
        assert len(crops) >= 4
        for crop in crops:
            image = Image.open(crop)
            assert (image.size, image.mode) == ((64, 64), 'RGB')


def test_a_crop_is_filed_under_the_class_of_its_object(shapes_set):
    for name_of_class in CLASSES:
        for crop in (shapes_set / 'classes' / 'val' / name_of_class).iterdir():
            image_id, number = crop.stem.split('_')
            instance = draw_scene(0, int(image_id) - 1).instances[int(number)]
            assert CLASSES[instance.class_index] == name_of_class
            assert not instance.iscrowd
