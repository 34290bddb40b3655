"""The folder of a data set: reproducible, complete, and nothing foreign in it is touched."""

import json
import shutil
from itertools import count
from pathlib import Path

import pytest

from mmpola.shapes import dataset, draw_scene, write_dataset

SMALL = {'images': 2, 'val_images': 1, 'size': (64, 64)}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture(scope='module')
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('small') / 'set'
    assert write_dataset(out, **SMALL)
    return out


@pytest.fixture
def out(small_set: Path, tmp_path: Path) -> Path:
    """A copy of the small set that a test may change."""
    return Path(shutil.copytree(small_set, tmp_path / 'set'))


@pytest.fixture
def interrupted(monkeypatch) -> None:
    """Press Ctrl-C at the third scene of a run."""
    calls = count()

    def draw(*arguments):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return draw_scene(*arguments)

    monkeypatch.setattr(dataset, 'draw_scene', draw)


def test_same_options_same_bytes(small_set, tmp_path):
    write_dataset(tmp_path / 'again', **SMALL)
    assert content(tmp_path / 'again') == content(small_set)


def test_more_images_keep_the_first_ones(small_set, tmp_path):
    write_dataset(tmp_path / 'more', **{**SMALL, 'images': 3})
    more = content(tmp_path / 'more')
    images = {name: data for name, data in content(small_set).items() if name.startswith('coco') and 'jpg' in name}
    assert len(images) == 3
    assert all(more[name] == data for name, data in images.items())


def test_one_in_five_is_for_validation_by_default(shapes_set):
    record = json.loads((shapes_set / 'shapes.json').read_text())
    assert record['options'] == {'images': 40, 'val_images': 8, 'size': [192, 160], 'seed': 0, 'drawing': 1}
    assert record['files'] == len(content(shapes_set))


def test_a_second_run_does_nothing(out):
    before = {path: path.stat().st_mtime_ns for path in out.rglob('*')}
    assert write_dataset(out, **SMALL) is False
    assert {path: path.stat().st_mtime_ns for path in out.rglob('*')} == before


def test_an_interrupted_run_leaves_nothing(tmp_path, interrupted):
    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / 'set', **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replacement_leaves_the_old_set(out, small_set, interrupted):
    with pytest.raises(KeyboardInterrupt):
        write_dataset(out, **SMALL, seed=1, force=True)
    assert content(out) == content(small_set)
    assert list(out.parent.iterdir()) == [out]


def test_leftovers_of_a_killed_run_are_removed(out, small_set):
    (out / 'shapes.json').unlink()
    out.rename(out.with_name('set.part'))
    assert write_dataset(out, **SMALL)
    assert content(out) == content(small_set)
    assert list(out.parent.iterdir()) == [out]


def test_other_options_are_refused_and_named(out, small_set):
    with pytest.raises(FileExistsError) as raised:
        write_dataset(out, **SMALL, seed=1)
    assert str(raised.value) == (
        f'{out} holds a data set with other options (images 2, val_images 1, size [64, 64], seed 0, drawing 1): '
        'use another folder, or --force'
    )
    assert content(out) == content(small_set)


def test_force_replaces_an_earlier_set(out, tmp_path, small_set):
    assert write_dataset(out, **SMALL, seed=1, force=True)
    assert json.loads((out / 'shapes.json').read_text())['options']['seed'] == 1
    assert content(out) != content(small_set)
    assert list(tmp_path.iterdir()) == [out]


def test_an_incomplete_set_is_noticed(out, small_set):
    next((out / 'ade' / 'images' / 'training').iterdir()).unlink()
    files = len(content(small_set))
    with pytest.raises(FileExistsError) as raised:
        write_dataset(out, **SMALL)
    assert str(raised.value) == f'{out} holds {files - 1} of its {files} files: write it again with --force'
    assert write_dataset(out, **SMALL, force=True)
    assert content(out) == content(small_set)


def test_an_empty_folder_is_taken(tmp_path, small_set):
    (tmp_path / 'set').mkdir()
    assert write_dataset(tmp_path / 'set', **SMALL)
    assert content(tmp_path / 'set') == content(small_set)


@pytest.mark.parametrize('force', [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path, force):
    out = tmp_path / 'photos'
    out.mkdir()
    (out / 'cat.jpg').write_bytes(b'cat')
    with pytest.raises(FileExistsError) as raised:
        write_dataset(out, **SMALL, force=force)
    assert str(raised.value) == f'{out} was not written by mmpola.shapes and is not touched: use another folder'
    assert content(tmp_path) == {'photos/cat.jpg': b'cat'}


@pytest.mark.parametrize('folder', ['set', 'set.part', 'set.old'])
def test_foreign_files_in_a_set_are_never_touched(out, folder):
    own = out.with_name(folder)
    own.mkdir(exist_ok=True)
    (own / 'results.txt').write_text('0.5')
    before = content(out.parent)
    with pytest.raises(FileExistsError) as raised:
        write_dataset(out, **SMALL, force=True)
    assert str(raised.value) == f'{own} holds results.txt, which mmpola.shapes did not write: use another folder'
    assert content(out.parent) == before


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'images': 0}, 'images: expected 1 to 500000, got 0'),
        ({'images': 500_001}, 'images: expected 1 to 500000, got 500001'),
        ({'images': 5, 'val_images': 0}, 'val_images: expected 1 to 500000, got 0'),
        ({'images': 5, 'seed': -3}, 'seed: expected 0 or more, got -3'),
        ({'images': 5, 'size': (64, 40)}, 'size: expected width and height from 64 to 2048 pixels, got (64, 40)'),
    ],
)
def test_arguments_outside_their_range_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError) as raised:
        write_dataset(tmp_path / 'set', **arguments)
    assert str(raised.value) == message
    assert list(tmp_path.iterdir()) == []
