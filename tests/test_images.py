"""Finding image files, and the files of their results."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmpola.images import check_outputs, find_images, images_below
from mmpola.messages import UsageError


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


@pytest.mark.parametrize('name', ['best_mIoU_iter_8.pth', 'model.safetensors'])
def test_a_second_checkpoint_is_no_image(photos, name, tmp_path):
    """A pattern of a shell may name two: the first is then the model, and was the older one."""
    second = photos / name
    second.write_bytes(b'weights')
    with pytest.raises(UsageError, match=f'^IMAGES: .* got a second checkpoint, {second}; name'):
        find_images([str(second), str(photos)], tmp_path / 'out')
    assert find_images([str(photos)], tmp_path / 'out')
    assert find_images([str(second)], tmp_path / 'out', {second.suffix})


def test_results_are_overwritten_only_with_permission(photos):
    (image,) = find_images([str(photos / 'first.jpg')], photos)
    outputs = [image.output(photos, '.jpg'), image.output(photos, '.json')]
    check_outputs(outputs[1:], overwrite=False)
    check_outputs(outputs, overwrite=True)
    with pytest.raises(UsageError, match=r'first\.jpg'):
        check_outputs(outputs, overwrite=False)


@pytest.mark.parametrize(
    ('arguments', 'results'),
    [
        (['cam1', 'cam2'], {'cam1/1', 'cam1/2', 'cam2/1', 'cam2/2'}),
        (['cam1/1.jpg', 'cam2/1.jpg'], {'cam1/1', 'cam2/1'}),
        (['cam1/1.jpg', 'cam2/2.png'], {'1', '2'}),
        (['cam1', 'other'], {'cam1/1', 'cam1/2', 'other/cam2/2', 'other/1'}),
        (['raw'], {'a.jpg', 'a.png', 'a.jpg.png', 'b.tif'}),
        (
            ['raw', 'cam1/1.jpg'],
            {'raw/a.jpg', 'raw/a.png', 'raw/a.jpg.png', 'raw/b.tif', 'cam1/1.jpg'},
        ),
        (['cam2', 'other/cam2'], {'cam2/1', 'cam2/2', 'other/cam2/2'}),
        (['cam1', 'cam1/1.jpg', './cam1/../cam1/2.jpg'], {'1', '2'}),
    ],
)
def test_no_two_images_share_their_results(arguments, results, tmp_path, monkeypatch):
    root = tmp_path / 'root'
    for name in (
        *('cam1/1.jpg', 'cam1/2.jpg', 'cam2/1.jpg', 'cam2/2.png', 'other/1.jpg'),
        *('other/cam2/2.jpg', 'raw/a.jpg', 'raw/a.png', 'raw/a.jpg.png', 'raw/b.tif'),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    monkeypatch.chdir(root)
    found = [str(image.result) for image in find_images(arguments, tmp_path / 'out')]
    assert len(found) == len(results)
    assert set(found) == results


def test_suffixes_of_a_data_set(photos, tmp_path):
    (photos / 'bands.NPY').touch()
    (image,) = find_images([str(photos)], tmp_path / 'out', {'.npy'})
    assert image.path.name == 'bands.NPY'


def test_which_files_of_a_folder_are_images(tmp_path, capsys):
    """In one way for every script: see also the tests of class folders and of `mmpola split`."""
    folder = tmp_path / 'photos'
    images = ('a.jpg', 'b.JPG', 'c.jfif', 'below/d.Png')
    left_out = ('e.gif', 'f.HEIC', 'below/g.gif', 'h')
    silent = ('i.xml', 'j.TXT', '._a.jpg', '.ipynb_checkpoints/a-checkpoint.jpg')
    for name in (*images, *left_out, *silent):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / 'below' / 'up').symlink_to('..')
    (folder / 'again').symlink_to('below')
    found = images_below(folder)
    assert sorted(found.paths) == sorted(['a.jpg', 'b.JPG', 'c.jfif', 'again/d.Png'])
    assert sorted(found.left_out) == ['again/g.gif', 'e.gif', 'f.HEIC', 'h']
    assert len(found.repeated) == 2
    assert len(find_images([str(folder)], tmp_path / 'out')) == len(images)
    note = 'left out: 4 files (.HEIC, .gif, no suffix)'
    assert capsys.readouterr().out == f'{folder}: {note}\n'


def test_results_never_replace_the_images_through_a_link(photos, tmp_path):
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'vis').symlink_to(photos)
    (image,) = find_images([str(photos / 'first.jpg')], out)
    with pytest.raises(UsageError, match='would replace them'):
        check_outputs([image.output(out / 'vis', '.jpg')], True, [image])
    check_outputs([image.output(out / 'vis', '.json')], True, [image])
    check_outputs([out / f'{"x" * 251}.json'], False, [image])  # a name that no file can have
