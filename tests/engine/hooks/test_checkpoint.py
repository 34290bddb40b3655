"""A full disk, at any write, leaves complete checkpoints and a `last_checkpoint` that names one of them."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mmpola.checkpoint.reading import read_checkpoint
from tests.helpers.small_training import ROOT, run, saved, small_config


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.is_file() and path.suffix != '.py')


def test_the_newest_and_the_best_are_kept(colours, tmp_path):
    run(small_config(colours, tmp_path, epochs=4, options={'default_hooks.checkpoint.max_keep_ckpts': 2}))
    kept = files(tmp_path)
    assert kept[1:] == ['epoch_3.pth', 'epoch_4.pth', 'last_checkpoint']
    assert kept[0].startswith('best_accuracy_top1_epoch_')
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/epoch_4.pth'
    assert saved(tmp_path / 'epoch_4.pth')['meta'] == {'epoch': 4, 'iter': 24, 'seed': 0}


class FullDisk:
    """Raises ENOSPC in the nth write of a checkpoint or pointer whose name holds `word`."""

    def __init__(self, monkeypatch, word, after):
        self.left = after
        sync = os.fsync

        def full(descriptor):
            name = os.readlink(f'/proc/self/fd/{descriptor}')
            if word in name:
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, 'fsync', full)


@pytest.mark.parametrize(
    ('word', 'after', 'expected'),
    [
        ('epoch_2.pth', 0, ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth', 'last_checkpoint']),
        ('best_', 1, ['best_accuracy_top1_epoch_1.pth', 'epoch_2.pth', 'last_checkpoint']),
        ('last_checkpoint', 2, ['best_accuracy_top1_epoch_1.pth', 'epoch_1.pth', 'epoch_2.pth', 'last_checkpoint']),
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoints(word, after, expected, colours, tmp_path, monkeypatch):
    scores = iter([50.0, 60.0])
    monkeypatch.setattr(
        'mmpola.classification.accuracy.Accuracy.compute_metrics', lambda self, results: {'top1': next(scores)}
    )
    FullDisk(monkeypatch, word, after)
    cfg = small_config(colours, tmp_path, epochs=2, options={'default_hooks.checkpoint.max_keep_ckpts': 1})
    with pytest.raises(OSError) as raised:
        run(cfg)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.strerror == 'could not be written (No space left on device); earlier checkpoints are intact'
    assert files(tmp_path) == expected
    last = Path((tmp_path / 'last_checkpoint').read_text())
    assert last.name in expected
    for name in expected[:-1]:
        read_checkpoint(tmp_path / name)


def test_a_refused_write_leaves_the_old_content(tmp_path):
    code = f"""
    import resource, signal
    from mmpola.engine.hooks.checkpoint import AtomicBackend
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    AtomicBackend().put(b'old', {str(tmp_path / 'a.pth')!r})
    AtomicBackend().put(b'new' * 1000, {str(tmp_path / 'a.pth')!r})
    """
    found = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert 'could not be written (File too large); earlier checkpoints are intact' in found.stderr
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [('a.pth', b'old')]
