"""The command `mmpola new`: what it writes, what it says, and what it refuses."""

import argparse
import json
import shutil

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmpola.openmmlab.checks import check_data
from mmpola.openmmlab.new import decide, new_config, show, write
from mmpola.openmmlab.new.description import BOXES, CLASSES, Found, Instance, Sample
from tests.helpers import layouts
from tests.helpers.refusals import refusal

OPTIONS = ('task', 'format', 'classes', 'size', 'model', 'out')


@pytest.fixture
def new(tmp_path, monkeypatch):
    """A function that runs the command in a folder with a layout in `animals`."""
    monkeypatch.chdir(tmp_path)

    def of(layout=None, folder='animals', **options):
        if layout is not None:
            layouts.written(layout, tmp_path)
        new_config(argparse.Namespace(folder=folder, **(dict.fromkeys(OPTIONS) | options)))

    return of


@pytest.fixture
def refused(new):
    """A function that runs the command, which must write nothing, and returns its error."""

    def of(*arguments, **options):
        message = refusal(new, *arguments, **options)
        assert '\n' not in message
        return message

    return of


def contents(folder):
    """Return the bytes of every file below a folder by its path."""
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize(
    'layout',
    [layouts.voc_beside, layouts.coco_outlines, layouts.maps_colours, layouts.class_folders],
    ids=lambda one: one.__name__,
)
def test_config_files_and_picture(layout, new, tmp_path, monkeypatch, capsys):
    layouts.written(layout, tmp_path)
    before = contents(tmp_path / 'animals')
    new()
    assert contents(tmp_path / 'animals') == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'animals',
        'animals.py',
        'animals_data',
    ]
    text = (tmp_path / 'animals.py').read_text()
    assert len(text.splitlines()) <= 20
    with Image.open(tmp_path / 'animals_data' / 'data.jpg') as picture:
        assert picture.width == 2400
        assert np.asarray(picture).std() > 20
    said = capsys.readouterr().out
    assert 'next: mmpola train animals.py    (about ' in said
    monkeypatch.chdir('/')  # it runs from anywhere
    report = check_data(Config.fromfile(tmp_path / 'animals.py'), whole=True)
    images = {split: data.images for data in report.sets for split in data.splits}
    assert images['train'] + images['val'] == layouts.NUMBER
    assert images['test'] == images['val']
    for one in report.found:
        assert str(one) in said


def test_a_config_that_exists_is_refused(refused, tmp_path):
    (tmp_path / 'animals.py').write_text('mine')
    assert refused(layouts.via_2).startswith('animals.py: exists already')
    assert (tmp_path / 'animals.py').read_text() == 'mine'
    assert not (tmp_path / 'animals_data').exists()


def test_nothing_is_left_if_the_disk_is_full(new, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(show, 'write_atomically', full)
    with pytest.raises(OSError, match='No space left'):
        new(layouts.via_2)
    assert [path.name for path in tmp_path.iterdir()] == ['animals']


def test_two_formats_at_once(refused, tmp_path):
    layouts.written(layouts.voc_beside, tmp_path)
    shutil.move(tmp_path / 'animals' / 'animals', tmp_path / 'one')
    shutil.move(tmp_path / 'one', tmp_path / 'animals' / 'voc')
    message = refused(layouts.yolo_beside)
    assert "Pascal VOC's format (10 files" in message
    assert "YOLO's format (10 files" in message
    assert message.endswith('--format voc or yolo decides')


@pytest.mark.parametrize(
    ('files', 'words'),
    [
        ([], 'expected images, got none'),
        (['a.jpg', 'b.jpg'], 'got 2 images'),
        (['cats/a.jpg', 'cats/b.jpg'], 'got 2 images'),
        (['images/a.jpg', 'notes/b.jpg'], 'got 2 images'),
    ],
)
def test_images_without_labels(files, words, refused, tmp_path):
    (tmp_path / 'animals').mkdir()
    for name in files:
        path = tmp_path / 'animals' / name
        path.parent.mkdir(exist_ok=True)
        Image.new('RGB', (8, 8)).save(path)
    assert words in refused()


def test_a_folder_that_does_not_exist(refused):
    assert refused(folder='dogs') == 'dogs: expected a folder of labelled images, got none'


def test_annotations_that_are_no_json(refused, tmp_path):
    (tmp_path / 'animals').mkdir()
    Image.new('RGB', (8, 8)).save(tmp_path / 'animals' / 'a.jpg')
    (tmp_path / 'animals' / 'a.json').write_text('{')
    assert 'a.json: cannot be read as JSON' in refused()


def sample(split, *names, size=(640, 480), side=40):
    """Return a sample with an object of each name."""
    things = [Instance(name, (10.0, 10.0, float(side), float(side))) for name in names]
    return Sample('photo.jpg', split, size, things)


def test_names_that_differ_by_capitals():
    found = Found('boxes', '', BOXES, [sample('', 'dog'), sample('', 'Dog')], ['Dog', 'dog'])
    message = refusal(decide.choose_classes, found, None)
    assert message.startswith('classes that differ by capitals only: Dog, dog; --classes dog ')
    decide.choose_classes(found, ['dog'])
    assert [one.name for each in found.samples for one in each.objects] == ['dog', 'dog']


def test_classes_that_are_not_wanted_are_left_out():
    found = Found('boxes', '', BOXES, [sample('', 'dog', 'cat', 'cat')], ['cat', 'dog'])
    decide.choose_classes(found, ['dog'])
    assert [one.name for one in found.samples[0].objects] == ['dog']
    assert found.classes == ['dog']
    assert found.notes == ['left out by --classes: cat (2)']


def test_classes_without_objects_in_training_are_left_out():
    samples = [sample('train', *['dog'] * 12), sample('val', 'dog', 'cat')]
    found = Found('boxes', '', BOXES, samples, ['cat', 'dog', 'bird'])
    decide.drop_absent_classes(found)
    assert found.classes == ['dog']
    assert [one.name for one in samples[1].objects] == ['dog']
    assert found.notes == ['left out: classes of which training has nothing: cat, bird']


@pytest.mark.parametrize(
    ('side', 'image', 'size'),
    [
        (60, (640, 480), (256, 192)),
        (30, (640, 480), (384, 288)),
        (20, (640, 480), (512, 384)),
        (10, (640, 480), (768, 576)),  # the image's own pixels: more would show no more
        (10, (4000, 3000), (1024, 768)),
        (60, (480, 640), (256, 192)),
    ],
)
def test_the_smallest_quarter_of_the_objects_keeps_16_pixels(side, image, size):
    samples = [sample('train', 'dog', size=image, side=side)]
    samples += [sample('train', 'dog', size=image, side=300) for _ in range(3)]
    samples[0].objects *= 2
    found = Found('boxes', '', BOXES, samples)
    assert decide.choose_size(found, None)[0] == size
    assert decide.choose_size(found, 512)[0] == (512, 384)


@pytest.mark.parametrize(
    ('task', 'images', 'batch', 'epochs'),
    [
        (BOXES, 8, 4, 100),
        (BOXES, 205, 4, 12),
        (BOXES, 1000, 4, 8),
        (BOXES, 40_000, 4, 2),
        (CLASSES, 100, 8, 50),
        (CLASSES, 1200, 32, 20),
    ],
)
def test_a_small_set_gets_its_steps(task, images, batch, epochs):
    found = Found('', '', task, [sample('train', 'dog')] * images)
    recipe = write.base_of(None, task).cfg
    assert decide.choose_length(found, recipe)[:2] == (batch, epochs)


def test_boxes_that_leave_their_image(new, tmp_path, capsys):
    layouts.written(layouts.coco_splits, tmp_path)
    path = tmp_path / 'animals' / 'annotations' / 'instances_train2017.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['bbox'] = [50, 4, 30, 26]
    content['annotations'][1]['bbox'] = [70, 4, 5, 5]
    path.write_text(json.dumps(content))
    new()
    said = capsys.readouterr().out
    assert 'cut at the border of their image: 1 object' in said
    assert 'left out: 1 object smaller than a pixel, or outside of the image' in said
    written = json.loads((tmp_path / 'animals_data' / 'train.json').read_text())
    assert [50, 4, 14, 26] in [one['bbox'] for one in written['annotations']]
    assert len(written['annotations']) == len(content['annotations']) - 1
