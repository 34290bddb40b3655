"""What `mmpola new` reads from each layout of the same photographs, without writing anything."""

import os

import numpy as np
import pytest
from pycocotools.coco import COCO

from mmpola.openmmlab.new import decide, maps, objects, recognised, write
from mmpola.openmmlab.new.description import BOXES, CLASSES, LABEL_MAPS, OUTLINES, Folder
from tests.helpers import layouts

every_layout = pytest.mark.parametrize('layout', layouts.LAYOUTS, ids=lambda one: one.__name__)
with_objects = pytest.mark.parametrize(
    'layout', [*layouts.BOXES, *layouts.OUTLINES], ids=lambda one: one.__name__
)
label_maps = pytest.mark.parametrize('layout', layouts.LABEL_MAPS, ids=lambda one: one.__name__)

HAS_SPLITS = {
    *('coco_splits', 'coco_roboflow', 'coco_outlines', 'coco_run_lengths', 'voc_lists', 'yolo'),
    *('yolo_roboflow', 'yolo_segments', 'via_1', 'cvat', 'maps_numbers', 'maps_palette'),
    *('maps_cityscapes', 'class_folders_splits'),
}


@pytest.fixture
def found_in(tmp_path):
    """A function that writes a layout, and returns the folder and what is recognised."""

    def of(layout):
        folder = Folder(layouts.written(layout, tmp_path))
        return folder, recognised(folder, None, None)

    return of


@every_layout
def test_every_photograph_is_found_once_in_its_split(layout, found_in):
    _, found = found_in(layout)
    splits = {sample.image.stem[:7]: sample.split for sample in found.samples}
    assert len(found.samples) == layouts.NUMBER
    for stem in layouts.STEMS:
        expected = layouts.split_of(stem) if layout.__name__ in HAS_SPLITS else ''
        assert splits[stem] == expected


@with_objects
def test_the_same_boxes_in_every_format(layout, found_in):
    _, found = found_in(layout)
    for sample in found.samples:
        boxes = []
        for one in sample.objects:
            x, y, width, height = one.box
            boxes.append((one.name, tuple(np.round([x, y, x + width, y + height], 3).tolist())))
        assert sorted(boxes) == sorted(layouts.objects_of(sample.image.stem[:7]))
        assert sample.size == layouts.SIZE


@with_objects
def test_outlines_are_the_task_if_most_objects_have_one(layout, found_in):
    _, found = found_in(layout)
    objects.choose_task(found, None)
    assert found.task == (OUTLINES if layout in layouts.OUTLINES else BOXES)


@pytest.mark.parametrize('layout', layouts.OUTLINES, ids=lambda one: one.__name__)
def test_outlines_are_written_with_their_area(layout, found_in, tmp_path):
    folder, found = found_in(layout)
    found.files.clear()
    objects.choose_task(found, None)
    decide.choose_splits(found, folder.root)
    write.mend_objects(found)
    decide.drop_absent_classes(found)
    assert found.classes == ['dog', 'cat']
    path = tmp_path / 'train.json'
    write.write_coco(found, 'train', path, folder.root)
    coco = COCO(path)
    for number, image in coco.imgs.items():
        assert (folder.root / image['file_name']).is_file()
        for annotation in coco.imgToAnns[number]:
            x, y, width, height = map(int, annotation['bbox'])
            mask = coco.annToMask(annotation)
            assert mask[y : y + height, x : x + width].all()
            assert mask.sum() == annotation['area'] == width * height


@label_maps
def test_the_values_of_label_maps(layout, found_in, tmp_path):
    folder, found = found_in(layout)
    assert found.task == LABEL_MAPS
    maps.read_values(found, folder, None)
    expected = {
        'maps_numbers': ['ground', 'dog', 'cat'],
        'maps_suffix': ['background', 'object'],
        'maps_colours': ['ground', 'dog', 'cat'],
        'maps_palette': ['class_0', 'class_1', 'class_2'],
    }
    assert found.classes[:3] == expected.get(layout.__name__, ['road', 'sidewalk', 'building'])
    write.convert_maps(found, tmp_path / 'labels', folder.root)
    for sample in found.samples:
        inside = os.path.relpath(sample.image, folder.root)
        pixels = maps.map_values(tmp_path / 'labels' / f'{inside}.png')
        numbers = layouts.numbers_of(sample.image.stem[:7])
        if layout is layouts.maps_suffix:
            numbers = numbers.clip(max=1)
        if layout is layouts.maps_palette:
            numbers[0] = 255
        assert (pixels == numbers).all()


@pytest.mark.parametrize(
    ('layout', 'suffixes'),
    [
        (layouts.maps_numbers, ('.jpg', '.png')),
        (layouts.maps_palette, ('.png', '.png')),
        (layouts.maps_cityscapes, ('_leftImg8bit.png', '_gtFine_labelTrainIds.png')),
        (layouts.maps_suffix, None),
        (layouts.maps_colours, None),
    ],
)
def test_label_maps_that_mmseg_can_read_stay_where_they_are(layout, suffixes, found_in, tmp_path):
    folder, found = found_in(layout)
    maps.read_values(found, folder, None)
    decide.choose_splits(found, folder.root)
    out = tmp_path / 'out'
    out.mkdir()
    arguments = write.label_map_files(found, out, tmp_path / 'final', folder.root)
    assert (out / 'labels').exists() == (suffixes is None)
    expected = suffixes or ('', '.png')
    assert (arguments['']['img_suffix'], arguments['']['seg_map_suffix']) == expected
    images = arguments['train']['data_prefix']['img_path']
    for name in (out / 'train.txt').read_text().split():
        assert os.path.isfile(os.path.join(images, name + expected[0]))


def test_cityscapes_label_ids_become_the_19_classes(found_in):
    folder, found = found_in(layouts.maps_cityscapes)
    for sample in found.samples:
        name = sample.label_map.name.replace('TrainIds', 'Ids')
        sample.label_map = sample.label_map.with_name(name)
    maps.read_values(found, folder, None)
    assert [found.values[value] for value in (7, 8, 11, 33)] == [0, 1, 2, 18]
    assert found.values[9] == 255


def test_class_folders(found_in):
    for layout in layouts.CLASS_FOLDERS:
        _, found = found_in(layout)
        assert found.task == CLASSES
        assert found.classes == ['cat', 'dog']
        for sample in found.samples:
            assert sample.name == sample.image.parent.name
        assert any('bird' in note for note in found.notes) == (layout is layouts.class_folders)
        for path in sorted(found.samples[0].image.parents[1].rglob('*'), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
