"""Atomic writes: a refused write leaves the old content and no partial file."""

import resource

import pytest

from mmpola.checkpoint.write import write_atomically


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
