"""Cached tokens are used until a source file changes."""

import os
import pickle
import shutil

import pytest

from mmpola.lra import texts
from mmpola.messages import UsageError
from tests.helpers.sequences import write_listops, write_text


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
    build('ListOps', root, brackets=False)
    assert len(reads) == 2


def test_progress_says_what_it_counts(build, tmp_path, capsys):
    lists = write_listops(tmp_path / 'lists')
    texts = write_text(tmp_path / 'texts')
    build('ListOps', lists)
    build('ByteText', texts)
    assert 'reading' not in capsys.readouterr().out  # small files are read at once
    long = tmp_path / 'long'
    shutil.copytree(texts, long)
    (long / 'train' / 'neg' / '3_1.txt').write_bytes(b'abc ' * 300_000)
    build('ByteText', long)
    size = sum(path.stat().st_size for path in (long / 'train').glob('*/*'))
    assert (
        f'reading bytetext-train: {size // 1000:,} of {size // 1000:,} kB'
        in capsys.readouterr().out
    )


def test_changed_files_are_read_again_and_replace_the_cache(build, tmp_path, cache, reads):
    root = write_listops(tmp_path / 'data')
    old = build('ListOps', root)
    path = root / 'basic_train.tsv'
    path.write_bytes(path.read_bytes().replace(b'9', b'8'))  # of the same size
    os.utime(path, ns=(1, 1))
    assert build('ListOps', root)[0]['inputs'].tolist() == [12, 3, 14, 9, 5, 15, 15]
    assert len(reads) == 2
    assert old[0]['inputs'].tolist() == [
        12,
        3,
        14,
        10,
        5,
        15,
        15,
    ]  # the arrays that are open remain
    assert len([folder for folder in cache.iterdir() if folder.is_dir()]) == 1


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
