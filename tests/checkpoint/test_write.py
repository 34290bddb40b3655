"""Atomic writes: a refused write leaves the old content and no partial file."""

import resource

import pytest

from mmpola.checkpoint.write import check_destination, write_atomically
from mmpola.messages import UsageError


def test_a_refused_write_leaves_the_old_content(tmp_path):
    path = tmp_path / 'file'
    write_atomically(path, b'old')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # bytes of a file
    try:
        with pytest.raises(OSError, match='File too large'):
            write_atomically(path, b'new' * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [('file', b'old')]
    write_atomically(path, memoryview(b'new'))
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [('file', b'new')]


def test_an_interrupted_write_leaves_the_old_content(tmp_path, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    path = tmp_path / 'file'
    path.write_bytes(b'old')
    monkeypatch.setattr('os.fsync', interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b'new')
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [('file', b'old')]


def test_terminal_escapes_in_names_of_files_to_write_are_printed_as_text(tmp_path):
    path = tmp_path / 'a\x1b[2J'
    path.touch()
    (tmp_path / 'folder\x1b').mkdir()
    paths = (path, tmp_path / 'folder\x1b', tmp_path / 'none\x1b' / 'file')
    for refused in paths:
        with pytest.raises(UsageError) as raised:
            check_destination(refused, overwrite=False)
        assert '\x1b' not in str(raised.value) and r'\x1b' in str(raised.value)
    with pytest.raises(UsageError, match=r'a\\x1b\[2J: expected another file') as raised:
        check_destination(path, overwrite=True, source=path)
    assert '\x1b' not in str(raised.value)
