"""Which checkpoints of the run before `mmpola train --overwrite` removes."""

import os
from types import SimpleNamespace

import pytest

from mmpola.openmmlab.run.atomic_checkpoint import AtomicCheckpointHook
from mmpola.openmmlab.start.forget import ForgetHook


def names(folder):
    return {path.name for path in folder.glob('*.pth')}


def forget(folder, *, epoch=0, iteration=0, **options):
    """Run the hook in a folder with files; return what is left after the first was saved."""
    (folder / 'last_checkpoint').write_bytes(b'epoch_3.pth')
    runner = SimpleNamespace(work_dir=str(folder), hooks=[], epoch=epoch, iter=iteration)
    hook = ForgetHook(**options)
    hook.before_train(runner)
    (folder / 'new').write_bytes(b'new')
    os.replace(folder / 'new', folder / 'epoch_4.pth')
    hook.after_saved(runner)
    return names(folder)


@pytest.fixture
def work(tmp_path):
    for name in ('epoch_3.pth', 'epoch_4.pth', 'epoch_5.pth', 'best_x_epoch_5.pth', 'iter_30.pth'):
        (tmp_path / name).write_bytes(b'old')
    return tmp_path


def test_a_run_that_resumes_from_an_earlier_checkpoint_keeps_what_it_has_made(work):
    assert forget(work, epoch=3, iteration=30, resumes=True) == {
        'epoch_3.pth',
        'epoch_4.pth',
        'iter_30.pth',
    }
    assert (work / 'last_checkpoint').read_bytes() == b'epoch_3.pth'


def test_a_new_run_keeps_the_files_that_its_config_names(work):
    kept = [str(work / 'epoch_5.pth')]
    assert forget(work, kept=kept) == {'epoch_4.pth', 'epoch_5.pth'}
    assert (work / 'last_checkpoint').read_bytes() == b''


def test_the_folder_of_the_checkpoints_may_be_another(tmp_path, work):
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'epoch_9.pth').write_bytes(b'old')
    saving = AtomicCheckpointHook()
    saving.out_dir = str(other)
    runner = SimpleNamespace(work_dir=str(work), hooks=[saving], epoch=0, iter=0)
    hook = ForgetHook()
    hook.before_train(runner)
    assert names(other)  # until something new is written
    hook.after_saved(runner)
    assert not names(other)
