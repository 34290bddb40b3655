"""Finding image files, the files of their results, and reading them."""

import re

import cv2
import numpy as np
import pytest
from PIL import Image

from mmpola.messages import UsageError
from mmpola.read_image import check_outputs, find_images, read_pixels


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
    return folder


def outputs_of(images, out):
    """The paths of two results of each image."""
    return [image.output(out, suffix) for image in images for suffix in ('.jpg', '.json')]


def test_files_folders_and_patterns(photos, tmp_path):
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
    assert found(photos, photos / 'first.jpg') == everything
    assert found(f'{photos}/**/*.jpg') == everything[:3]
    assert found(f'{photos}/inner/s*') == [('photos/inner/second.jpg', 'second')]
    # Results of an earlier run are no images.
    assert found(photos, out=photos / 'inner') == [everything[0], everything[3]]


def test_two_images_with_one_result_are_refused(photos, tmp_path):
    first = (photos / 'first.jpg').rename(photos / 'second.jpg')
    second = photos / 'inner' / 'second.jpg'
    with pytest.raises(UsageError, match=re.escape(f'{second} and {first}: ')):
        find_images([str(second), str(first)], tmp_path / 'out')


@pytest.mark.parametrize('argument', ['none.jpg', '*.gif', 'empty'])
def test_arguments_that_match_nothing(photos, argument, tmp_path):
    (photos / 'empty').mkdir()
    with pytest.raises(UsageError, match=re.escape(f'{photos}/{argument}: no ')):
        find_images([f'{photos}/{argument}'], tmp_path / 'out')


def test_an_input_image_is_never_overwritten(photos):
    images = find_images([str(photos / 'first.jpg')], photos)
    with pytest.raises(UsageError, match=re.escape(f'input images ({photos}/first.jpg)')):
        check_outputs(images, photos, outputs_of(images, photos), overwrite=True)


def test_results_are_overwritten_only_with_permission(photos, tmp_path):
    images = find_images([str(photos / 'first.jpg')], tmp_path)
    outputs = outputs_of(images, tmp_path)
    check_outputs(images, tmp_path, outputs, overwrite=False)
    outputs[1].write_text('of an earlier run')
    check_outputs(images, tmp_path, outputs, overwrite=True)
    with pytest.raises(UsageError, match=re.escape(f'({tmp_path}/first.json)')):
        check_outputs(images, tmp_path, outputs, overwrite=False)


@pytest.mark.parametrize('out', ['text.png', 'text.png/inner'])
def test_a_file_in_place_of_the_folder_of_results_is_refused(photos, out):
    images = find_images([str(photos / 'first.jpg')], photos / out)
    with pytest.raises(UsageError, match=r'--out: expected a folder .* got the file .*text\.png'):
        check_outputs(images, photos / out, outputs_of(images, photos / out), overwrite=True)


def test_files_that_cannot_be_read_say_why(photos, monkeypatch):
    """Files of rare formats in a folder are tried."""
    Image.new('RGB', (8, 6)).save(photos / 'animated.gif')
    (photos / 'phone.heic').write_bytes(b'no decoder for this')
    (photos / 'inner' / 'notes.txt').write_text('not an image by its suffix')
    imread = cv2.imread

    def imread_of_older_opencv(path, flags):
        return None if path.endswith('.gif') else imread(path, flags)

    monkeypatch.setattr(cv2, 'imread', imread_of_older_opencv)
    reasons = {}
    for image in find_images([str(photos)], photos / 'out'):
        try:
            pixels = read_pixels(image.path)
        except UsageError as error:
            reasons[image.path.name] = str(error)
        else:
            assert pixels.shape == (40, 60, 3)
    assert reasons.keys() == {'third.jpg', 'text.png', 'animated.gif', 'phone.heic'}
    assert 'truncated' in reasons['third.jpg']
    assert reasons['text.png'] == 'not an image'
    for name in ('animated.gif', 'phone.heic'):
        assert 'converted to .png' in reasons[name]
