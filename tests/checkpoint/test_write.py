"""Atomic writes: a refused write leaves the old content and no partial file."""

import resource

import pytest
import torch
from matplotlib.figure import Figure

from mmpola.checkpoint.write import is_of_training
from mmpola.files import write_atomically, write_figure


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


def test_the_longest_name_is_written(tmp_path):
    path = tmp_path / f'{"x" * 250}.json'
    write_atomically(path, 'größer')
    assert [(file.name, file.read_text('utf-8')) for file in tmp_path.iterdir()] == [
        (path.name, 'größer')
    ]


def test_a_figure_is_written_in_the_format_of_its_suffix(tmp_path):
    for suffix, start in (('png', b'\x89PNG'), ('pdf', b'%PDF'), ('jpg', b'\xff\xd8')):
        write_figure(tmp_path / f'figure.{suffix}', Figure(figsize=(1, 1)), dpi=50)
        assert (tmp_path / f'figure.{suffix}').read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_training_run_is_recognised_without_reading_its_tensors(tmp_path):
    path = tmp_path / 'epoch_1.pth'
    x = torch.arange(1000.0)
    torch.save({'state_dict': {'x': x}, 'message_hub': {'log_scalars': {}}}, path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(x.numpy().tobytes())] ^= 255
    path.write_bytes(damaged)
    assert is_of_training(path)


@pytest.mark.parametrize('text', ['message_hub = 1', 'weights'])
def test_weights_are_no_training_run(text, tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save({'state_dict': {'x': torch.ones(3)}, 'meta': {'cfg': text}}, path)
    assert not is_of_training(path)
    torch.save(torch.ones(3), path)
    assert not is_of_training(path)
    torch.save({'message': 1}, path, _use_new_zipfile_serialization=False)
    assert not is_of_training(path)
    path.write_bytes(path.read_bytes()[:100])
    assert not is_of_training(path)
