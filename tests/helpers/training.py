"""Small training runs: start, interrupt and compare them bit for bit."""

import copy
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dist import barrier, get_world_size
from mmengine.hooks import Hook
from mmengine.logging import MessageHub, MMLogger
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from PIL import Image

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.messages import UsageError
from mmpola.openmmlab.config.contents import nodes
from tests.helpers import ROOT
from tests.helpers.configs import SMALL_ARCHS, shrink

COLOURS = {'blue': (40, 60, 200), 'green': (40, 200, 60), 'red': (200, 50, 40)}
STATES = ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
SIZE = 32  # pixels


def write_images(folder):
    """Write {train,val}/{blue,green,red}/N.png: noisy colours, 8 and 3 images per class."""
    generator = np.random.default_rng(5)
    for split, number in (('train', 8), ('val', 3)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for i in range(number):
                pixels = (generator.normal(colour, 40, (40, 36, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f'{i}.png')
    return folder


def shorten_schedule(parts, epochs):
    """End the schedule of an ImageNet config after `epochs`, with one epoch of warm-up."""
    if len(parts) == 1:
        parts[0].update(warmup=1, T_max=epochs, end=epochs)
    else:
        warmup, cosine = parts
        warmup.end = 1
        cosine.update(begin=1, end=epochs, T_max=epochs - 1)


def small_config(
    data, work_dir, *, name='imagenet_pola_swin_t', batch=4, epochs=3, workers=0, options=None
):
    """Shrink configs/`name`.py to three classes and one block per stage.

    `options` are as in `--cfg-options`.
    """
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    cfg.model.num_classes = 3
    cfg.model.backbone.update(pretrain_img_size=SIZE, drop_path_rate=0.2)
    cfg.model.backbone['arch'] = SMALL_ARCHS['mmpola.PolaSwin']
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(
            batch_size=batch, num_workers=workers, persistent_workers=workers > 0, pin_memory=False
        )
        loader.dataset.root = f'{data}/train'
        loader.dataset.transform.input_size = SIZE
        if split != 'train':
            loader.dataset.root = f'{data}/val'
            loader.dataset.classes = f'{data}/train'
    cfg.val_evaluator.topk = cfg.test_evaluator.topk = (1, 2)
    shorten_schedule(cfg.param_scheduler, epochs)
    cfg.train_cfg.max_epochs = epochs
    cfg.auto_scale_lr.base_batch_size = batch
    cfg.visualizer.vis_backends = [{'type': 'LocalVisBackend'}]
    cfg.work_dir = str(work_dir)
    cfg.log_level = 'WARNING'
    cfg.merge_from_dict(options or {})
    return cfg


def forget_runs():
    """Let MMEngine forget all runs: it names one by its second, and keeps what has that name."""
    for kept in (MessageHub, MMLogger, Visualizer, *Visualizer.__subclasses__()):
        kept._instance_dict.clear()  # every class has its own


def run(cfg, *hooks, resume=False):
    """Train and return the runner."""
    cfg = copy.deepcopy(cfg)
    cfg.resume = resume
    forget_runs()
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook, priority='ABOVE_NORMAL')
    runner.train()
    return runner


def assert_refused_at_the_start(data, work_dir, options, message):
    """Train with these `--cfg-options`: the error begins so, and no checkpoint is written."""
    with pytest.raises((ValueError, UsageError)) as raised:
        run(small_config(data, work_dir, options=options))
    assert str(raised.value).startswith(message)
    assert not list(Path(work_dir).glob('*.pth'))


def saved(path):
    """Read what a checkpoint must share with that of an uninterrupted run, without times."""
    checkpoint = read_checkpoint(path)
    scalars = checkpoint['message_hub']['log_scalars']
    information = checkpoint['message_hub']['runtime_info']
    kept = {key: checkpoint[key] for key in STATES if key in checkpoint}
    timed = ('time', 'memory')
    kept['log'] = {
        key: value for key, value in scalars.items() if not any(word in key for word in timed)
    }
    kept['best'] = Path(information.get('best_ckpt', '')).name
    kept['meta'] = {key: checkpoint['meta'][key] for key in ('epoch', 'iter', 'seed')}
    return kept


CONFIGS = {'mask_rcnn_pola_swin_t_3x': 8, 'semantic_fpn_pola_pvt_t_40k': 6}
"""Config -> step after which training is interrupted: within an epoch, and when validation is due.

The first has epochs of batches by aspect ratio with multi-scale crops, the second steps of random
crops.
"""

STEPS = 12


class Signal(Hook):
    """Sends this process a signal after a step, from 1 on, or in validation after an epoch."""

    def __init__(self, *, step=None, epoch=None, number=signal.SIGTERM):
        self.step = step
        self.epoch = epoch
        self.number = number

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
    """Shrink a config to 12 steps of two images per process; it validates after step 6."""
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
    """Train to the end, and again with a signal after `step`: both end alike.

    `config(work_dir)` gives the config.
    """
    seen = Batches()
    before = Batches()
    after = Batches()
    runner = run(config(folder / 'whole'), seen)
    with pytest.raises(SystemExit) as raised:
        run(config(folder / 'parts'), before, Signal(step=step))
    assert raised.value.code == 75
    assert len(before.seen) == step
    run(config(folder / 'parts'), after, resume=True)
    assert before.seen + after.seen == seen.seen
    barrier()  # rank 0 may still be writing
    last = f'iter_{STEPS}.pth'
    if runner.epoch:
        last = f'epoch_{runner.epoch}.pth'
    assert_same(saved(folder / 'parts' / last), saved(folder / 'whole' / last))
    assert not (folder / 'parts' / 'interrupted.pth').exists()


def distribute(cfg):
    """Prepare a config for this process group, without a GPU.

    SyncBN needs a GPU. BN takes its place, as it does in a run on several processes without one.
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
            node.update(type='BN')
    return cfg
