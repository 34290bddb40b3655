"""Two processes train and evaluate like one process, and stop together."""

import json
import re

import pytest
import torch
from torch.testing import assert_close

from tests.helpers.processes import start
from tests.helpers.small_training import run, saved
from tests.helpers.two_processes import plain

pytestmark = pytest.mark.slow


def weights_before(colours):
    """The weights before the first step."""
    cfg = plain(colours, colours.parent / 'start', batch=4)
    cfg.optim_wrapper.optimizer.lr = 0.0
    cfg.train_cfg.max_epochs = 1
    return run(cfg).model.state_dict()


@pytest.fixture(scope='module')
def together(colours, tmp_path_factory):
    """Work dir of two processes that trained to the end."""
    folder = tmp_path_factory.mktemp('together')
    status, outputs = start('two_processes', colours, folder, 'whole')
    assert status == [0, 0], outputs
    return folder


def test_two_processes_equal_one(colours, together, tmp_path):
    runner = run(plain(colours, tmp_path / 'one', batch=4))
    one, two = saved(tmp_path / 'one' / 'epoch_2.pth'), saved(together / 'epoch_2.pth')
    before = weights_before(colours)
    for key, weight in one['state_dict'].items():
        moved = (weight - before[key]).abs().max() if weight.is_floating_point() else 0
        assert_close(two['state_dict'][key], weight, rtol=0, atol=max(1e-3 * float(moved), 1e-6), msg=key)
    assert_close(*(state['log']['train/lr']['log_history'] for state in (two, one)))

    # nine images on two processes: one is dealt twice and counted once
    found = [json.loads((together / f'rank{rank}.json').read_text()) for rank in range(2)]
    metrics = runner.val_loop.run()
    assert found == [metrics, metrics]
    hits = metrics['accuracy/top1'] * 9 / 100
    assert hits == pytest.approx(round(hits), abs=1e-6)


def test_a_signal_to_one_process_stops_both_and_they_resume(colours, together, tmp_path):
    status, outputs = start('two_processes', colours, tmp_path, 'interrupted')
    assert status == [75, 75], outputs
    assert saved(tmp_path / 'interrupted.pth')['meta'] == {'epoch': 0, 'iter': 3, 'seed': 0}
    assert (
        'a signal to another process: stopped in epoch 1 after step 3; --resume continues from '
        f'{tmp_path}/interrupted.pth (exit status 75)'
    ) in outputs[0]
    status, outputs = start('two_processes', colours, tmp_path, 'resumed')
    assert status == [0, 0], outputs
    one, two = (saved(folder / 'epoch_2.pth') for folder in (tmp_path, together))
    assert all(torch.equal(one['state_dict'][key], x) for key, x in two['state_dict'].items())


def test_weights_that_are_nan_in_one_process_stop_both(colours, tmp_path):
    status, outputs = start('two_processes', colours, tmp_path, 'poisoned')
    assert status == [1, 1], outputs
    assert 'got tensors of another process; stopped after step 6' in outputs[0]
    assert re.search(r'NonFiniteError: model: expected finite weights to save, got \d+ tensors such as ', outputs[1])
    assert not list(tmp_path.glob('*.pth'))
