"""A run of `mmpola train --overwrite` replaces the checkpoints of the run before."""

import pytest

from tests.helpers.processes import run_script
from tests.helpers.training import small_config
from tests.openmmlab.start.test_forget import names

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.parametrize('save_best', ['accuracy/top1', None])
def test_a_run_that_overwrites_leaves_only_its_own_checkpoints(save_best, colours, tmp_path):
    """`best_*.pth` of the pages would name the one of the run before, too."""
    cfg = small_config(colours, tmp_path / 'work', epochs=2)
    cfg.default_hooks.checkpoint.update(save_best=save_best, interval=2)
    cfg.dump(tmp_path / 'small.py')
    work = tmp_path / 'work'
    work.mkdir()
    old = {'best_accuracy_top1_epoch_7.pth', 'epoch_2.pth', 'epoch_8.pth', 'iter_3.pth'}
    own = {'mine.pth', 'pola_swin_224.pth'}
    for name in old | own:
        (work / name).write_bytes(b'of the run before')
    assert run_script('train', tmp_path / 'small.py', '--work-dir', work, '--overwrite') == 0
    best = {name for name in names(work) if name.startswith('best_')}
    assert len(best) == (save_best is not None)
    assert names(work) == {'epoch_2.pth'} | best | own
    assert (work / 'epoch_2.pth').stat().st_size > 1000
