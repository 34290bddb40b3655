"""Generated shapes: reproducible, varied and visible scenes, and what is written of them."""

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmpola.openmmlab import shapes
from mmpola.openmmlab.shapes import (
    CLASSES,
    Instance,
    draw_scene,
    polygons,
    segmentation,
    write_dataset,
)
from tests.helpers.processes import exit_status
from tests.helpers.refusals import refusal

SMALL = {'images': 2, 'val_images': 1, 'size': (64, 64)}


@pytest.fixture(scope='module')
def scenes():
    return [draw_scene(seed=5, index=index) for index in range(90)]


@pytest.fixture(scope='module')
def written(tmp_path_factory):
    """A data set of 40 training and 8 validation scenes, seed 0."""
    out = tmp_path_factory.mktemp('shapes') / 'set'
    assert write_dataset(out, images=40)
    return out


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file()
    }


def extent(mask):
    """The longer side of a mask's box in pixels."""
    return np.ptp(np.nonzero(mask), axis=1).max() + 1


def test_every_kind_of_scene_and_object_occurs(scenes):
    instances = [instance for scene in scenes for instance in scene.instances]
    objects = [instance for instance in instances if not instance.iscrowd]
    extents = [extent(instance.mask) for instance in objects]
    assert {instance.class_index for instance in objects} == set(range(len(CLASSES)))
    assert 1 <= sum(not scene.instances for scene in scenes) <= 13  # 5 % expected
    assert 1 <= len(instances) - len(objects) <= 18  # 8 % expected
    assert max(sum(not i.iscrowd for i in scene.instances) for scene in scenes) == 6
    assert min(extents) < 16
    assert max(extents) > 80
    assert np.mean([24 <= extent <= 96 for extent in extents]) > 0.7


def test_masks_hold_the_visible_part_and_enough_of_it(scenes):
    for scene in scenes:
        assert np.sum([instance.mask for instance in scene.instances], axis=0).max(initial=0) <= 1
        for instance in scene.instances:
            assert instance.mask.sum() >= max(24, 0.3 * instance.pixels)
    hidden = [i.mask.sum() < i.pixels for scene in scenes for i in scene.instances]
    assert sum(hidden) >= 20  # occlusion is part of the task


def test_objects_contrast_with_their_surroundings(scenes):
    """Most pixels just inside an edge differ from the mean just outside it."""
    shares = []
    for scene in scenes:
        everything = np.any([i.mask for i in scene.instances], axis=0) if scene.instances else None
        for instance in scene.instances:
            grown = np.zeros_like(instance.mask)
            for shift in range(-3, 4):
                grown |= np.roll(instance.mask, shift, axis=0) | np.roll(
                    instance.mask, shift, axis=1
                )
            outside = scene.image[grown & ~everything]
            if len(outside) > 20:
                inside = scene.image[instance.mask].astype(float)
                shares.append(np.mean(np.linalg.norm(inside - outside.mean(axis=0), axis=1) > 60))
    assert np.mean(np.array(shares) > 0.8) > 0.95


@pytest.mark.parametrize('only', range(len(CLASSES)))
def test_a_single_object_is_whole(only):
    (instance,) = draw_scene(0, 3, (64, 64), only).instances
    assert instance.class_index == only
    assert instance.mask.sum() == instance.pixels
    assert 24 <= extent(instance.mask) <= 60


def mask_of(*rows):
    return np.array([[pixel == '#' for pixel in row] for row in rows])


MASKS = {
    'one pixel': mask_of('....', '.#..', '....'),
    'the whole image': mask_of('####', '####', '####'),
    'a line': mask_of('......', '.####.', '......'),
    'a corner of the image': mask_of('##..', '#...', '....'),
    'two parts': mask_of('##...', '##.##', '...##'),
    'a hole': mask_of('#####', '#...#', '#####'),
    'a hole one pixel wide': mask_of('###', '#.#', '###'),
    'two holes': mask_of('#########', '#..###..#', '#..###..#', '#########'),
    'a part inside a hole': mask_of('#######', '#.....#', '#..#..#', '#.....#', '#######'),
}


@pytest.mark.parametrize('mask', MASKS.values(), ids=MASKS.keys())
def test_polygons_and_run_lengths_cover_the_mask_and_not_its_holes(mask):
    outlines = coco_mask.merge(coco_mask.frPyObjects(polygons(mask), *mask.shape))
    run_lengths = segmentation(Instance(0, mask, pixels=int(mask.sum()), iscrowd=True))
    for encoded in (outlines, run_lengths):
        assert np.array_equal(coco_mask.decode(encoded).astype(bool), mask)


def test_polygons_of_scenes_are_inside_the_image_and_have_an_area(scenes):
    for instance in (instance for scene in scenes for instance in scene.instances):
        height, width = instance.mask.shape
        for part in polygons(instance.mask):
            x, y = np.reshape(part, (-1, 2)).T
            assert len(part) >= 6
            assert x.min() >= 0 and y.min() >= 0 and x.max() <= width and y.max() <= height
            assert abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 > 0


@pytest.mark.parametrize(
    ('split', 'ade_split', 'number'), [('train', 'training', 40), ('val', 'validation', 8)]
)
def test_the_layouts_hold_what_the_scenes_show(written, split, ade_split, number):
    coco = COCO(written / 'coco' / 'annotations' / f'instances_{split}2017.json')
    assert [(c['id'], c['name']) for c in coco.dataset['categories']] == list(enumerate(CLASSES, 1))
    ids = [annotation['id'] for annotation in coco.dataset['annotations']]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 1  # COCOeval treats id 0 as 'no match'
    assert {i['file_name'] for i in coco.dataset['images']} == {
        path.name for path in (written / 'coco' / f'{split}2017').iterdir()
    }
    assert len(coco.imgs) == number
    assert (
        any(annotation['iscrowd'] for annotation in coco.dataset['annotations']) or split == 'val'
    )
    for image_id, listed in coco.imgs.items():
        scene = draw_scene(seed=0, index=image_id - 1)
        photo = written / 'coco' / f'{split}2017' / listed['file_name']
        labels = np.zeros((160, 192), np.uint8)
        saved = np.asarray(Image.open(photo)).astype(float)
        assert saved.shape == (listed['height'], listed['width'], 3) == (160, 192, 3)
        loss_of_jpeg = np.abs(saved - scene.image).mean()
        assert loss_of_jpeg < 8  # swapped colours would be several times that
        annotations = coco.loadAnns(coco.getAnnIds(image_id))
        for annotation, instance in zip(annotations, scene.instances, strict=True):
            labels[instance.mask] = instance.class_index + 1
            mask = coco.annToMask(annotation).astype(bool)
            iou = (mask & instance.mask).sum() / (mask | instance.mask).sum()
            least = 0.9 if instance.mask.sum() > 100 else 0.8
            assert iou == 1 if instance.iscrowd else iou >= least
            assert annotation['category_id'] == instance.class_index + 1
            assert annotation['iscrowd'] == instance.iscrowd
            assert isinstance(annotation['segmentation'], dict if instance.iscrowd else list)
            assert annotation['area'] == instance.mask.sum()
            rows, columns = np.nonzero(instance.mask)
            x, y, width, height = annotation['bbox']
            assert (x, x + width - 1) == (columns.min(), columns.max())
            assert (y, y + height - 1) == (rows.min(), rows.max())
        label_map = Image.open(written / 'ade' / 'annotations' / ade_split / f'{photo.stem}.png')
        assert label_map.mode == 'L'
        assert np.array_equal(np.asarray(label_map), labels)
        assert (
            written / 'ade' / 'images' / ade_split / photo.name
        ).read_bytes() == photo.read_bytes()


@pytest.mark.parametrize(('split', 'number'), [('train', 10), ('val', 4)])
def test_class_folders_have_an_object_of_their_class_per_image(written, split, number):
    assert {folder.name for folder in (written / 'classes' / split).iterdir()} == set(CLASSES)
    for only, name in enumerate(CLASSES):
        images = sorted((written / 'classes' / split / name).iterdir())
        assert len(images) == number
        for path in images:
            scene = draw_scene(0, int(path.stem) - 1, (64, 64), only)
            assert np.abs(np.asarray(Image.open(path)).astype(float) - scene.image).mean() < 10


def test_the_same_options_give_the_same_bytes_and_more_images_keep_the_first_ones(tmp_path):
    for name, images in (('one', 2), ('two', 2), ('more', 3)):
        assert write_dataset(tmp_path / name, **{**SMALL, 'images': images})
    one = content(tmp_path / 'one')
    more = content(tmp_path / 'more')
    whole = {name: image for name, image in more.items() if name.startswith('coco/')}
    assert len(set(whole.values())) == len(whole)  # no validation image is a training image
    assert content(tmp_path / 'two') == one
    pictures = [name for name in one if name.startswith('coco') and name.endswith('.jpg')]
    assert len(pictures) == 3
    assert all(more[name] == one[name] for name in pictures)
    assert not np.array_equal(draw_scene(seed=1, index=0).image, draw_scene(seed=0, index=0).image)


def test_a_folder_that_holds_files_is_never_touched(tmp_path):
    out = tmp_path / 'set'
    out.mkdir()  # an empty folder is taken
    assert write_dataset(out, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in out.rglob('*')}
    assert write_dataset(out, **SMALL) is False
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'photos' / 'cat.jpg').write_bytes(b'cat')
    for folder, seed in ((out, 1), (tmp_path / 'photos', 0)):
        message = refusal(write_dataset, folder, **SMALL, seed=seed)
        assert message.startswith(f'{folder}: ')
    assert {path: path.stat().st_mtime_ns for path in out.rglob('*')} == before
    assert content(tmp_path / 'photos') == {'cat.jpg': b'cat'}


def test_the_command(tmp_path, capsys):
    out = tmp_path / 'set'
    for line in (f'wrote {out}\n', f'{out} already holds this data set: nothing to do\n'):
        assert exit_status(shapes.main, 'shapes', out, '--images', 2) == 0
        assert capsys.readouterr().out == line


def test_an_interrupted_command_leaves_nothing(tmp_path, monkeypatch):
    calls = []

    def draw(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw_scene(*arguments)

    monkeypatch.setattr(shapes, 'draw_scene', draw)
    assert exit_status(shapes.main, 'shapes', tmp_path / 'set', '--images', 4) == 130
    assert list(tmp_path.iterdir()) == []
