"""The evaluation on the test data that ends a run."""

import json

import pytest

from mmpola.openmmlab.run.final_test import RESULT
from tests.helpers.processes import run_script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]


def test_a_test_that_was_interrupted_is_made_up_for_also_in_another_folder(
    classifier, tmp_path, capsys
):
    """The best checkpoint is looked for where the run is now."""
    options = ('--resume', '--skip-checks', 'trial', '--cfg-options')
    options += ('train_cfg.max_epochs=1', 'train_cfg.val_interval=1')
    options += ('default_hooks.final_test.type=mmpola.FinalTestHook',)
    options += ('default_hooks.checkpoint.save_best=auto',)

    def train(work):
        assert run_script('train', classifier, '--work-dir', work, *options) == 0
        return capsys.readouterr().out

    def stop(*_):
        raise SystemExit(9)

    first = tmp_path / 'first'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.TestLoop.run', stop)
        assert run_script('train', classifier, '--work-dir', first, *options) == 9
    work = first.rename(tmp_path / 'moved')
    assert not (work / RESULT).exists()
    (best,) = work.glob('best_*.pth')

    train(work)
    result = json.loads((work / RESULT).read_text())
    assert result['checkpoint'] == str(best)
    assert 0 <= result['accuracy/top1'] <= 100
    assert 'the run has ended, nothing is left' in train(work)
    assert json.loads((work / RESULT).read_text()) == result
