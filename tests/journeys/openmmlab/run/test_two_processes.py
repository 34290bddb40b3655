"""Two processes train and evaluate like one process, stop together, and resume exactly."""

import json

import pytest
import torch
from torch.testing import assert_close

from tests.helpers.processes import start
from tests.helpers.training import CONFIGS, run, saved
from tests.helpers.two_processes import plain

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def together(colours, shapes, tmp_path_factory):
    """The folder of all runs of two processes, the results of both, and what they printed."""
    folder = tmp_path_factory.mktemp('together')
    status, outputs = start('two_processes', colours, shapes, folder)
    assert status == [0, 0], outputs
    return (
        folder,
        [json.loads((folder / f'rank{rank}.json').read_text()) for rank in range(2)],
        outputs,
    )


def weights_before(colours):
    """The weights before the first step."""
    cfg = plain(colours, colours.parent / 'start', batch=4)
    cfg.optim_wrapper.optimizer.lr = 0.0
    cfg.train_cfg.max_epochs = 1
    return run(cfg).model.state_dict()


def test_two_processes_equal_one(colours, together, tmp_path):
    folder, results, _ = together
    runner = run(plain(colours, tmp_path / 'one', batch=4))
    one = saved(tmp_path / 'one' / 'epoch_2.pth')
    two = saved(folder / 'whole' / 'epoch_2.pth')
    before = weights_before(colours)
    for key, weight in one['state_dict'].items():
        moved = (weight - before[key]).abs().max() if weight.is_floating_point() else 0
        assert_close(
            two['state_dict'][key], weight, rtol=0, atol=max(1e-3 * float(moved), 1e-6), msg=key
        )
    assert_close(*(state['log']['train/lr']['log_history'] for state in (two, one)))

    # nine images on two processes: one is dealt twice and counted once
    metrics = runner.val_loop.run()
    assert [result['whole'] for result in results] == [metrics, metrics]
    hits = metrics['accuracy/top1'] * 9 / 100
    assert hits == pytest.approx(round(hits), abs=1e-6)


def test_a_signal_to_one_process_stops_both_and_they_resume(together):
    folder, results, outputs = together
    assert [result['interrupted'] for result in results] == [
        [75, {'epoch': 0, 'iter': 3, 'seed': 0}]
    ] * 2
    assert (
        'a signal to another process: stopped after step 3; --resume continues from ' in outputs[0]
    )
    assert [result['resumed'] for result in results] == [result['whole'] for result in results]
    one, two = (saved(folder / work / 'epoch_2.pth') for work in ('parts', 'whole'))
    assert all(torch.equal(one['state_dict'][key], x) for key, x in two['state_dict'].items())


def test_detectors_and_segmenters_resume_with_the_same_bits(together):
    """`interrupt_and_resume` has compared them; only the interrupted run has workers."""
    assert all((together[0] / name / 'parts').is_dir() for name in CONFIGS)


def test_weights_that_are_nan_in_one_process_stop_both(together):
    folder, (first, second), _ = together
    assert 'at step 6, got NaN or infinity in another process' in first['poisoned']
    assert 'at step 6, got NaN or infinity in module.backbone.' in second['poisoned']
    assert not list((folder / 'poisoned').glob('*.pth'))


def test_running_statistics_are_averaged_in_the_model_and_in_its_ema(together):
    for rank, result in enumerate(together[1]):
        norm, frozen, average = result['statistics']
        for buffers in (norm, average):
            assert buffers['running_mean'] == [0.5] * 2
            assert buffers['running_var'] == [1.5] * 2
            assert buffers['num_batches_tracked'] == 4
        assert frozen['running_mean'] == [rank] * 2
