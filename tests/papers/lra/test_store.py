"""Cached tokens are used until a source file changes."""

import os
import pickle

import pytest

from mmpola.messages import UsageError
from mmpola.papers.lra import texts
from tests.helpers.sequences import write_listops, write_retrieval, write_text


@pytest.fixture
def reads(monkeypatch):
    """Counts how often a ListOps file is read."""
    calls = []
    original = texts.read_rows
    monkeypatch.setattr(texts, 'read_rows', lambda *args: calls.append(1) or original(*args))
    return calls


def test_unchanged_files_are_not_read_again(build, tmp_path, reads):
    root = write_listops(tmp_path / 'data')
    first = build('ListOps', root)
    second = build('ListOps', root)
    assert len(reads) == 1
    assert second[0]['inputs'].tolist() == first[0]['inputs'].tolist()
    build('ListOps', root, brackets=True)
    assert len(reads) == 2


def test_changed_files_are_read_again_and_replace_the_cache(build, tmp_path, cache, reads):
    root = write_listops(tmp_path / 'data')
    old = build('ListOps', root)
    path = root / 'basic_train.tsv'
    path.write_bytes(path.read_bytes().replace(b'9', b'8'))  # of the same size
    os.utime(path, ns=(1, 1))
    assert build('ListOps', root)[0]['inputs'].tolist() == [12, 3, 14, 9, 5]
    assert len(reads) == 2
    assert old[0]['inputs'].tolist() == [12, 3, 14, 10, 5]  # the arrays that are open remain
    assert len([folder for folder in cache.iterdir() if folder.is_dir()]) == 1


@pytest.mark.parametrize(
    ('name', 'write', 'options'),
    [
        ('ListOps', write_listops, {'brackets': True}),
        ('ByteText', write_text, {'max_length': 3}),
        ('Retrieval', write_retrieval, {'literals': True}),
        ('Retrieval', write_retrieval, {'max_length': 3}),
    ],
)
def test_another_option_never_gets_the_cached_tokens(build, tmp_path, name, write, options):
    root = write(tmp_path / 'data')
    folders = {build(name, root, **chosen).samples.folder for chosen in ({}, options)}
    assert len(folders) == 2


def test_an_added_file_is_noticed(build, tmp_path):
    root = write_text(tmp_path / 'data')
    assert len(build('ByteText', root)) == 4
    (root / 'train/pos/7_7.txt').write_text('new')
    assert len(build('ByteText', root)) == 5


def test_workers_get_the_folder_and_not_the_arrays(build, tmp_path):
    data = build('ListOps', write_listops(tmp_path / 'data'))
    assert len(data) == 2
    content = pickle.dumps(data)
    assert b'memmap' not in content
    copy = pickle.loads(content)
    assert copy[1]['inputs'].tolist() == data[1]['inputs'].tolist() == [8]


def test_invalid_files_leave_no_cache(build, tmp_path, cache):
    root = write_listops(tmp_path / 'data')
    (root / 'basic_train.tsv').write_text('Source\tTarget\n1\n')
    with pytest.raises(UsageError):
        build('ListOps', root)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
