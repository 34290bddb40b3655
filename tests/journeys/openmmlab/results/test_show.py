"""`test --show-dir`: a drawing for each image, whatever the images are called."""

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mmseg.visualization import SegLocalVisualizer
from PIL import Image

from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')

SAME_NAMES = ('cam0/1.jpg', 'cam1/1.jpg', 'cam1/2.jpg', 'cam1/2.png')
DRAWINGS = [f'{name}.jpg' for name in SAME_NAMES]  # with suffixes, as two differ by nothing else


@pytest.fixture
def detector(tiny_config, shapes, tmp_path):
    """A function that returns a config whose four test images have these names."""

    def write(names):
        data = tmp_path / 'coco'
        shutil.copytree(shapes / 'coco', data)
        file = data / 'annotations' / 'instances_val2017.json'
        content = json.loads(file.read_text())
        for image, name in zip(content['images'], names, strict=True):
            moved = data / 'val2017' / name
            moved.parent.mkdir(exist_ok=True)
            (data / 'val2017' / image['file_name']).rename(moved)
            image['file_name'] = name
        file.write_text(json.dumps(content))
        text = tiny_config.read_text()
        tiny_config.write_text(text.replace(f'{shapes}/coco', str(data)))
        return tiny_config

    return write


@pytest.fixture
def segmenter(tiny_segmentation, shapes, tmp_path):
    """A function that returns a config whose four test images have these names, without others."""

    def write(names):
        data = tmp_path / 'ade'
        labels = sorted((shapes / 'ade' / 'annotations' / 'validation').iterdir())
        for name, label in zip(names, labels, strict=True):
            image = shapes / 'ade' / 'images' / 'validation' / f'{label.stem}.jpg'
            for folder, source in (('images', image), ('annotations', label)):
                path = (data / folder / 'validation' / name).with_suffix(source.suffix)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, path)
        text = tiny_segmentation.read_text()
        tiny_segmentation.write_text(text.replace(f'{shapes}/ade', str(data)))
        return tiny_segmentation

    return write


def show(config, write_checkpoint, folder, *options):
    """Evaluate with drawings in `folder`/shown; return the exit status and their names."""
    checkpoint = write_checkpoint(config, folder / 'weights.pth')
    arguments = (config, checkpoint, '--work-dir', folder / 'work', '--show-dir', folder / 'shown')
    status = run_script('test', *arguments, *options)
    shown = [path for path in (folder / 'shown').rglob('*') if path.is_file()]
    assert all(np.asarray(Image.open(path)).std() > 0 for path in shown)
    return status, sorted(str(path.relative_to(folder / 'shown')) for path in shown)


def test_images_of_one_name_get_a_drawing_each(detector, write_checkpoint, tmp_path, capsys):
    assert show(detector(SAME_NAMES), write_checkpoint, tmp_path) == (0, DRAWINGS)
    assert f'{tmp_path}/shown: 4 images drawn' in capsys.readouterr().out
    assert list(tmp_path.glob('work/*/*.json'))  # the metrics


def test_drawings_and_label_maps_of_segments(segmenter, write_checkpoint, tmp_path):
    names = ('cam0/1.jpg', 'cam1/1.jpg', 'cam1/2.jpg', '3.jpg')
    config = segmenter(names)
    written = ('--cfg-options', f'test_evaluator.output_dir={tmp_path}/maps')
    assert show(config, write_checkpoint, tmp_path, *written) == (0, sorted(names))
    maps = {str(path.relative_to(tmp_path / 'maps')) for path in tmp_path.glob('maps/**/*.png')}
    assert maps == {str(Path(name).with_suffix('.png')) for name in names}


def test_images_that_cannot_be_drawn_are_named(
    segmenter, write_checkpoint, tmp_path, monkeypatch, capsys
):
    draw = SegLocalVisualizer.add_datasample

    def fail(visualizer, name, *arguments, **options):
        if name in ('test_1.jpg', 'test_3.jpg'):
            raise IndexError('index 1 is out of bounds')  # as mmseg for an image of one pixel
        draw(visualizer, name, *arguments, **options)

    monkeypatch.setattr(SegLocalVisualizer, 'add_datasample', fail)
    config = segmenter(('1.jpg', '2.jpg', '3.jpg', '4.jpg'))
    assert show(config, write_checkpoint, tmp_path) == (1, ['2.jpg', '4.jpg'])
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    (first, second) = [line for line in lines if 'not drawn: ' in line]
    assert f'not drawn: {tmp_path}/ade/images/validation/1.jpg: IndexError: ' in first
    assert f'not drawn: {tmp_path}/ade/images/validation/3.jpg: IndexError: ' in second
    assert f'{tmp_path}/shown: 2 images drawn, 2 not drawn (exit status 1)' in lines[-1]


def test_a_full_disk_and_long_names_end_one_image(
    detector, write_checkpoint, fill_the_disk, tmp_path, capsys
):
    fill_the_disk('b.jpg')
    long = 'x' * 255
    config = detector(('a.jpg', 'b.jpg', long, 'd.jpg'))
    assert show(config, write_checkpoint, tmp_path) == (1, ['a.jpg', 'd.jpg'])
    printed = capsys.readouterr()
    assert 'b.jpg: OSError: [Errno 28] No space left on device: ' in printed.out + printed.err
    assert f'{long}: OSError: [Errno {errno.ENAMETOOLONG}] ' in printed.out + printed.err
    assert list(tmp_path.glob('work/*/*.json'))  # the metrics


def test_drawings_never_replace_the_images(detector, write_checkpoint, tmp_path, capsys):
    config = detector(('a.jpg', 'b.jpg', 'c.jpg', 'd.jpg'))
    images = tmp_path / 'coco' / 'val2017'
    before = (images / 'a.jpg').read_bytes()
    (tmp_path / 'shown').symlink_to(images)
    status, _ = show(config, write_checkpoint, tmp_path)
    assert status == 2
    assert 'error: --show-dir: expected a folder apart from the images' in capsys.readouterr().err
    assert (images / 'a.jpg').read_bytes() == before
