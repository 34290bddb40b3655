"""Folders that are complete or absent."""

import pytest

from mmpola.cache import complete_folder


def interrupt(path):
    with complete_folder(path) as folder:
        (folder / 'half').touch()
        raise KeyboardInterrupt


def test_a_folder_is_complete_or_absent(tmp_path):
    path = tmp_path / 'data'
    with pytest.raises(KeyboardInterrupt):
        interrupt(path)
    assert not list(tmp_path.iterdir())
    path.mkdir()  # an empty folder may become it
    with complete_folder(path) as folder:
        (folder / 'whole').touch()
    assert list(tmp_path.rglob('*')) == [path, path / 'whole']
