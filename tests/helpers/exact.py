"""Interrupt trainings and compare what they saw and saved, bit for bit."""

import os
import signal

import pytest
import torch
from mmengine.config import Config
from mmengine.dist import barrier, get_world_size
from mmengine.hooks import Hook

from mmpola.config_tree import nodes
from tests.helpers.small_configs import shrink
from tests.helpers.small_training import ROOT, run, saved

CONFIGS = {'mask_rcnn_pola_swin_t_3x': 8, 'semantic_fpn_pola_pvt_t_40k': 6}
"""Epochs of batches by aspect ratio with multi-scale crops, and steps of random crops -> step after which training is
interrupted: within an epoch, and when validation is due."""

STEPS = 12


class Signal(Hook):
    """Sends this process a signal after a step, counted from 1 over the whole run, or in validation after an epoch."""

    def __init__(self, *, step=None, epoch=None, number=signal.SIGTERM):
        self.step, self.epoch, self.number = step, epoch, number

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.step:
            os.kill(os.getpid(), self.number)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if batch_idx == 0 and runner.epoch == self.epoch:
            os.kill(os.getpid(), self.number)


class Batches(Hook):
    """Records (index of the step in its epoch, paths of its images)."""

    def __init__(self):
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.seen.append((batch_idx, [sample.img_path for sample in data_batch['data_samples']]))


def assert_same(one, other, where=''):
    """Compare nested containers bit for bit; `where` names the part that differs."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f'{where}.{key}')
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f'{where}.{index}')
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif hasattr(one, 'shape'):
        assert one.shape == other.shape and (one == other).all(), where
    else:
        assert one == other, where


def small(shapes, work, name, workers=0):
    """Shrink a config to 12 steps on 12 scenes, two images per process and step; it validates after step 6."""
    cfg = shrink(Config.fromfile(ROOT / 'configs' / f'{name}.py'), shapes, work)
    for _, node in nodes(cfg.train_dataloader, 'train_dataloader'):
        if 'scales' in node:
            node['scales'] = [(96, 80), (80, 64), (112, 96)]
        if 'crop_size' in node:
            node['crop_size'] = (40, 64)
    loader = cfg.train_dataloader
    loader.update(num_workers=workers, persistent_workers=workers > 0)
    loader.dataset.pop('indices', None)
    epochs = 2 * get_world_size()
    if cfg.default_scope == 'mmdet':
        cfg.train_cfg.update(val_interval=epochs // 2, max_epochs=epochs)
        cfg.default_hooks.checkpoint.interval = epochs
    else:
        cfg.train_cfg.update(max_iters=STEPS, val_interval=STEPS // 2)
        cfg.default_hooks.checkpoint.interval = STEPS
    for schedule in cfg.param_scheduler:
        schedule.update(begin=0, end=STEPS)
    cfg.randomness = {'seed': 3}
    cfg.work_dir = str(work)
    return cfg


def interrupt_and_resume(folder, step, config):
    """Train to the end, and again with a signal after `step`; `config(work_dir)` gives the config. Both end alike."""
    seen, before, after = Batches(), Batches(), Batches()
    runner = run(config(folder / 'whole'), seen)
    with pytest.raises(SystemExit) as raised:
        run(config(folder / 'parts'), before, Signal(step=step))
    assert raised.value.code == 75
    assert len(before.seen) == step
    run(config(folder / 'parts'), after, resume=True)
    assert before.seen + after.seen == seen.seen
    barrier()  # rank 0 may still be writing
    last = f'epoch_{runner.epoch}.pth' if runner.epoch else f'iter_{STEPS}.pth'
    assert_same(saved(folder / 'parts' / last), saved(folder / 'whole' / last))
    assert not (folder / 'parts' / 'interrupted.pth').exists()


def distribute(cfg):
    """Prepare a config for this process group, without a GPU.

    SyncBN needs a GPU. It keeps its statistics equal in all processes; GN, which takes its place,
    has none.
    """
    cfg.launcher = 'pytorch'
    cfg.model_wrapper_cfg = {
        'type': 'MMDistributedDataParallel',
        'device_ids': None,
        'broadcast_buffers': False,
    }
    cfg.default_hooks.preemption.interval = 1
    for _, node in nodes(cfg.model, 'model'):
        if node.get('type') == 'SyncBN':
            node.update(type='GN', num_groups=4)
    return cfg
