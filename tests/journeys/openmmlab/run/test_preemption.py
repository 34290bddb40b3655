"""Signals, and the loops that PreemptionHook refuses; test_loops.py resumes what it saved."""

import multiprocessing
import signal
import sys
import time

import pytest
from mmengine.hooks import Hook

from mmpola.openmmlab.run.preemption import PreemptionHook
from tests.helpers.training import Signal, assert_refused_at_the_start, run, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
def test_another_loop_is_refused_before_the_first_step(colours, tmp_path):
    message = "train_cfg.type: expected 'mmpola.ExactEpochLoop' or 'mmpola.ExactIterLoop'"
    assert_refused_at_the_start(
        colours, tmp_path, {'train_cfg.type': 'EpochBasedTrainLoop'}, message
    )


@pytest.mark.slow
def test_windows_has_fewer_signals(monkeypatch):
    with pytest.raises(KeyError, match='SIGNONE'):
        PreemptionHook(('SIGINT', 'SIGNONE'))
    monkeypatch.setattr(sys, 'platform', 'win32')
    assert PreemptionHook(('SIGINT', 'SIGNONE')).signals == [signal.SIGINT]


def test_a_terminal_that_closes_is_a_signal_too_unless_it_is_ignored(colours, tmp_path):
    with pytest.raises(SystemExit) as raised:
        run(small_config(colours, tmp_path), Signal(step=2, number=signal.SIGHUP))
    assert raised.value.code == 75
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/interrupted.pth'
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        runner = run(
            small_config(colours, tmp_path), Signal(step=13, number=signal.SIGHUP), resume=True
        )
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert runner.epoch == 3


@pytest.mark.slow
def test_ctrl_c_saves_and_another_one_stops_at_once(colours, tmp_path, capfd):
    with pytest.raises(SystemExit) as raised:
        run(small_config(colours, tmp_path), Signal(step=2, number=signal.SIGINT))
    assert raised.value.code == 130
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/interrupted.pth'
    assert 'Ctrl-C: saving a checkpoint' in capfd.readouterr().err

    twice = Signal(step=2, number=signal.SIGINT), Signal(step=2, number=signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(small_config(colours, tmp_path / 'second'), *twice)
    assert not (tmp_path / 'second' / 'last_checkpoint').exists()


@pytest.mark.slow
def test_torchrun_passes_ctrl_c_on_a_second_time(colours, tmp_path, monkeypatch):
    monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'none')
    twice = Signal(step=2, number=signal.SIGINT), Signal(step=2, number=signal.SIGINT)
    with pytest.raises(SystemExit) as raised:
        run(small_config(colours, tmp_path), *twice)
    assert raised.value.code == 130
    assert (tmp_path / 'interrupted.pth').exists()


@pytest.mark.slow
def test_processes_that_a_metric_forks_can_be_ended(colours, tmp_path):
    """mmdet's VOCMetric ends its pool by SIGTERM; a run waited for ever for one that noted it."""
    statuses = []

    class Pool(Hook):
        def after_val_epoch(self, runner, metrics=None):
            fork = multiprocessing.get_context('fork')
            processes = [fork.Process(target=time.sleep, args=(60,)) for _ in range(20)]
            for process in processes:
                process.start()
                process.terminate()  # often before the process has run
            for process in processes:
                process.join(timeout=20)
                statuses.append(process.exitcode)
                process.kill()

    runner = run(small_config(colours, tmp_path, epochs=2), Pool())
    assert runner.epoch == 2
    assert statuses == [-signal.SIGTERM] * 40
