"""Finding image files, the files of their results, and reading them."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mmpola.messages import UsageError
from mmpola.read_image import check_outputs, find_images, read_pixels, size_as_loaded


@pytest.fixture
def photos(tmp_path):
    """A folder with an image, a text file named like one, and two images below, one cut off."""
    folder = tmp_path / 'photos'
    inner = folder / 'inner'
    inner.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    for path in (folder / 'first.jpg', inner / 'second.jpg', inner / 'third.jpg'):
        Image.fromarray(noise).save(path)
    whole = (inner / 'third.jpg').read_bytes()
    (inner / 'third.jpg').write_bytes(whole[:1000])
    (folder / 'text.png').write_text('no picture')
    (inner / 'notes.txt').write_text('not an image by its suffix')
    return folder


def test_files_and_folders(photos, tmp_path, monkeypatch):
    def found(*arguments, out=tmp_path / 'out'):
        images = find_images([str(argument) for argument in arguments], out)
        return [(str(image.path.relative_to(tmp_path)), str(image.result)) for image in images]

    everything = [
        ('photos/first.jpg', 'first'),
        ('photos/inner/second.jpg', 'inner/second'),
        ('photos/inner/third.jpg', 'inner/third'),
        ('photos/text.png', 'text'),
    ]
    assert found(photos) == everything
    file = photos / 'inner' / 'second.jpg'
    assert found(file) == [('photos/inner/second.jpg', 'second')]
    # Results of an earlier run are no images.
    assert found(photos, out=photos / 'inner') == [everything[0], everything[3]]
    monkeypatch.chdir(tmp_path)
    assert found(photos, out=Path('photos/inner')) == [everything[0], everything[3]]


@pytest.mark.parametrize('argument', ['none.jpg', 'empty'])
def test_arguments_without_images(photos, argument, tmp_path):
    (photos / 'empty').mkdir()
    with pytest.raises(UsageError):
        find_images([f'{photos}/{argument}'], tmp_path / 'out')


def test_results_are_overwritten_only_with_permission(photos):
    (image,) = find_images([str(photos / 'first.jpg')], photos)
    outputs = [image.output(photos, '.jpg'), image.output(photos, '.json')]
    check_outputs(outputs[1:], overwrite=False)
    check_outputs(outputs, overwrite=True)
    with pytest.raises(UsageError, match=r'first\.jpg'):
        check_outputs(outputs, overwrite=False)


def test_files_that_cannot_be_read(photos):
    assert read_pixels(photos / 'first.jpg').shape == (40, 60, 3)
    for name in ('inner/third.jpg', 'text.png', 'none.png'):
        with pytest.raises(UsageError):
            read_pixels(photos / name)


@pytest.mark.parametrize(('orientation', 'size'), [(1, (9, 5)), (4, (9, 5)), (6, (5, 9))])
def test_the_size_of_an_image_that_the_camera_turned(orientation, size, tmp_path):
    image = Image.new('RGB', (9, 5))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / 'turned.jpg', exif=exif)
    assert size_as_loaded(tmp_path / 'turned.jpg') == size
    assert cv2.imread(str(tmp_path / 'turned.jpg')).shape[1::-1] == size
