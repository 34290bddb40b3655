"""A resumed run ends with exactly the weights of an uninterrupted one, or is refused."""

import os
import shutil
import signal

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler

from mmpola.openmmlab.run.preemption import PREEMPTED
from mmpola.openmmlab.run.seeding import SampleKey, SeededDataset
from tests.helpers.processes import interpret
from tests.helpers.refusals import refusal
from tests.helpers.training import (
    Batches,
    Signal,
    assert_refused_at_the_start,
    assert_same,
    run,
    saved,
    small_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]

AVERAGED = {
    'default_hooks.average': {'type': 'EMAHook', 'momentum': 0.1, 'update_buffers': True},
    'optim_wrapper.accumulative_counts': 2,
    'randomness.seed': 7,
}


@pytest.fixture(scope='module')
def uninterrupted(colours, tmp_path_factory):
    """Three epochs of six steps: batches, and the last checkpoint."""
    folder = tmp_path_factory.mktemp('uninterrupted')
    batches = Batches()
    run(small_config(colours, folder, options=AVERAGED), batches)
    return batches.seen, saved(folder / 'epoch_3.pth')


@pytest.mark.parametrize(
    ('event', 'stopped_at'),
    [
        ({'step': 8}, (1, 8)),
        ({'step': 9, 'number': signal.SIGUSR1}, (1, 10)),  # not before the optimizer steps
        ({'step': 12}, (1, 12)),  # only the end of the epoch is left
        ({'epoch': 2}, (2, 14)),  # in validation, which is finished first
    ],
    ids=['boundary', 'accumulating', 'end of epoch', 'validation'],
)
def test_resuming_ends_with_the_same_bits(event, stopped_at, uninterrupted, colours, tmp_path):
    batches = uninterrupted[0]
    before = Batches()
    after = Batches()
    cfg = small_config(colours, tmp_path, options=AVERAGED)
    with pytest.raises(SystemExit) as raised:
        run(cfg, before, Signal(**event))
    assert raised.value.code == PREEMPTED == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'interrupted.pth')
    meta = saved(tmp_path / 'interrupted.pth')['meta']
    assert (meta['epoch'], meta['iter']) == stopped_at

    cfg.randomness.seed = None  # that of the checkpoint counts
    run(cfg, after, resume=True)
    assert before.seen + after.seen == batches
    assert_same(saved(tmp_path / 'epoch_3.pth'), uninterrupted[1])


def test_an_epoch_is_validated_once_although_the_run_was_interrupted_in_the_next(colours, tmp_path):
    """Also if no best checkpoint is kept."""
    cfg = small_config(colours, tmp_path, options={'default_hooks.checkpoint.save_best': None})
    with pytest.raises(SystemExit):
        run(cfg, Signal(step=8))
    runner = run(cfg, resume=True)
    assert len(runner.message_hub.get_scalar('val/accuracy/top1').data[0]) == 3


class Validations(Hook):
    """Records after how many epochs the run was validated."""

    def __init__(self):
        self.epochs = []

    def before_val(self, runner):
        self.epochs.append(runner.epoch)


@pytest.mark.parametrize(
    ('options', 'epochs'),
    [
        ({'train_cfg.val_begin': 2}, [2, 3, 4]),
        ({'train_cfg.val_interval': 3}, [3, 4]),
        (
            {'train_cfg.val_interval': 9, 'train_cfg.dynamic_intervals': [(3, 1)]},
            [2, 3, 4],
        ),  # as in MMEngine
    ],
)
def test_epochs_after_which_a_run_is_validated(options, epochs, colours, tmp_path):
    validations = Validations()
    run(small_config(colours, tmp_path, epochs=4, options=options), validations)
    assert validations.epochs == epochs


class Modes(Hook):
    """Records whether the model is in training mode in each step."""

    def __init__(self):
        self.training = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.training.append(runner.model.training)


def test_steps_after_a_validation_train(colours, tmp_path):
    """Dropout and BatchNorm differ; validation in training by steps is in between two of them."""
    modes = Modes()
    validations = Validations()
    cfg = small_config(colours, tmp_path)
    cfg.train_cfg = {'type': 'mmpola.ExactIterLoop', 'max_iters': 6, 'val_interval': 2}
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=6)
    cfg.log_processor = {'by_epoch': False}
    cfg.param_scheduler = []
    run(cfg, modes, validations)
    assert modes.training == [True] * 6
    assert len(validations.epochs) == 3


@pytest.mark.parametrize('counts', [4, 6])
def test_gradients_that_the_end_of_an_epoch_loses_are_warned_of(counts, colours, tmp_path, warned):
    options = {'optim_wrapper.accumulative_counts': counts}
    run(small_config(colours, tmp_path, epochs=2, options=options))
    found = any('not a multiple of accumulative_counts' in line for line in warned)
    assert found == (counts == 4)  # of 6 steps


def test_workers_change_no_bit_and_outlive_signals(uninterrupted, colours, tmp_path):
    class SignalWorkers(Hook):
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter in (2, 8):
                for worker in runner.train_dataloader._iterator._workers:
                    os.kill(worker.pid, signal.SIGTERM)

    runner = run(small_config(colours, tmp_path, workers=2, options=AVERAGED), SignalWorkers())
    assert_same(saved(tmp_path / 'epoch_3.pth'), uninterrupted[1])
    assert all(worker.is_alive() for worker in runner.train_dataloader._iterator._workers)


def test_a_signal_to_a_process_and_its_workers_ends_them_cleanly(colours, tmp_path):
    code = f"""
    import os, signal
    os.setsid()  # in a group of its own
    from mmengine.hooks import Hook
    from tests.helpers.training import run, small_config
    class Group(Hook):
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 1:
                os.killpg(0, signal.SIGTERM)
    run(small_config({str(colours)!r}, {str(tmp_path)!r}, epochs=2, workers=2), Group())
    """
    found = interpret(code)
    assert found.returncode == 75, found.stderr
    assert 'Traceback' not in found.stderr
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'interrupted.pth')
    run(small_config(colours, tmp_path, epochs=2, workers=2), resume=True)
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'epoch_2.pth')


def test_a_batch_that_is_larger_than_the_data_is_refused_before_the_first_step(colours, tmp_path):
    message = 'train_dataloader: expected at least one batch of 25, got 24 images per process'
    assert_refused_at_the_start(colours, tmp_path, {'train_dataloader.batch_size': 25}, message)


class Seeds(Hook):
    """Records what torch's generator was seeded with before each step."""

    def __init__(self):
        self.seen = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.seen.append(torch.initial_seed())


class SampleSeeds:
    """A data set whose items are what torch's generator was seeded with."""

    def __getitem__(self, index):
        return torch.initial_seed()


def test_steps_and_samples_have_random_numbers_of_their_own_and_the_last_epoch_is_validated(
    colours, tmp_path
):
    seeds = Seeds()
    data = SeededDataset(SampleSeeds())
    runner = run(small_config(colours, tmp_path, options={'train_cfg.val_interval': 2}), seeds)
    samples = [data[SampleKey(0, runner.seed, number)] for number in range(18 * 4)]
    assert len({*seeds.seen, *samples}) == 18 + len(samples)
    assert (
        len(runner.message_hub.get_scalar('val/accuracy/top1').data[0]) == 2
    )  # after epochs 2 and 3


def test_every_process_has_random_numbers_of_its_own(colours, tmp_path, monkeypatch):
    """Else all would drop the same paths in a step."""
    seen = []
    for rank in (0, 1):
        seeds = Seeds()
        monkeypatch.setattr('mmpola.openmmlab.run.loops.get_rank', lambda rank=rank: rank)
        run(
            small_config(colours, tmp_path / str(rank), epochs=2, options={'randomness.seed': 0}),
            seeds,
        )
        seen += seeds.seen
    assert len(set(seen)) == len(seen) == 2 * 12


def test_another_batch_in_the_middle_of_an_epoch_is_refused(colours, tmp_path):
    with pytest.raises(SystemExit):
        run(small_config(colours, tmp_path), Signal(step=8))
    message = refusal(run, small_config(colours, tmp_path, batch=6), resume=True)
    assert message.startswith(
        'resume: expected 4 images per step (processes x train_dataloader.batch_size) in the middle'
    )


@DATA_SAMPLERS.register_module()
class Grouping(BatchSampler):
    """As mmdet's AspectRatioBatchSampler, it may group the images of a process."""


@pytest.mark.parametrize('grouping', [True, False])
def test_other_processes_with_as_many_images_per_step(grouping, colours, tmp_path, monkeypatch):
    """Two processes of two images, then one of four."""
    options = {}
    if grouping:
        options['train_dataloader.batch_sampler'] = {'type': 'Grouping', 'drop_last': True}
    with monkeypatch.context() as patch:
        patch.setattr('mmpola.openmmlab.run.loops.get_world_size', lambda: 2)
        with pytest.raises(SystemExit):
            run(small_config(colours, tmp_path, batch=2, options=options), Signal(step=8))
    cfg = small_config(colours, tmp_path, batch=4, options=options)
    if grouping:
        message = refusal(run, cfg, resume=True)
        assert message.startswith(
            'resume: expected 2 processes as before, because Grouping groups the images of each of '
            'them, got 1; '
        )
    else:
        run(cfg, resume=True)


def test_another_batch_from_the_end_of_an_epoch_is_logged(colours, tmp_path, warned):
    batches = Batches()
    run(small_config(colours, tmp_path, epochs=2))
    run(small_config(colours, tmp_path, batch=6), batches, resume=True)
    assert [len(paths) for _, paths in batches.seen] == [6] * 4
    assert saved(tmp_path / 'epoch_3.pth')['meta'] == {'epoch': 3, 'iter': 16, 'seed': 0}
    (note,) = (line for line in warned if line.startswith('resume: 6 images per step '))
    assert ' instead of 4, 4 steps per epoch' in note


def test_images_that_are_added_in_the_middle_of_an_epoch(colours, tmp_path, warned):
    """The epoch goes on where it was in an order of other images."""
    data = shutil.copytree(colours, tmp_path / 'data')
    with pytest.raises(SystemExit):
        run(small_config(data, tmp_path / 'work'), Signal(step=8))
    added = data / 'train' / 'blue' / '00.png'
    shutil.copy(data / 'train' / 'blue' / '0.png', added)
    message = refusal(run, small_config(data, tmp_path / 'work'), resume=True)
    assert message.startswith(
        'resume: expected the same 24 training images in the middle of an epoch, got 25: some'
    )
    (data / 'train' / 'blue' / '1.png').unlink()
    message = refusal(run, small_config(data, tmp_path / 'work'), resume=True)
    assert ' in the middle of an epoch, got as many others: ' in message
    one_epoch = {'train_cfg.max_epochs': 1}
    run(small_config(data, tmp_path / 'other', epochs=2, options=one_epoch))
    shutil.copy(added, data / 'train' / 'blue' / '000.png')
    run(small_config(data, tmp_path / 'other', epochs=2), resume=True)
    assert any(line.startswith('resume: 25 instead of 24 training images, ') for line in warned)
