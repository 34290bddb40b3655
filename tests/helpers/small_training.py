"""The ImageNet recipe on a few generated images with a tiny Pola-Swin, for tests and their subprocesses."""

import copy
import uuid
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image

from mmpola.checkpoint.safe_load import read_checkpoint, register_mmengine_reader

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {'blue': (40, 60, 200), 'green': (40, 200, 60), 'red': (200, 50, 40)}
STATES = ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
SIZE = 32  # pixels


def write_images(folder):
    """Write `folder`/{train,val}/{blue,green,red}/N.png: the colour with noise; 8 and 3 images per class."""
    generator = np.random.default_rng(5)
    for split, number in (('train', 8), ('val', 3)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for i in range(number):
                pixels = (generator.normal(colour, 40, (40, 36, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f'{i}.png')
    return folder


def shorten_schedule(parts, epochs):
    """Let the schedule of a pretraining or fine-tuning config end after `epochs`, with one epoch of warm-up."""
    if len(parts) == 1:
        parts[0].update(warmup=1, T_max=epochs, end=epochs)
    else:
        warmup, cosine = parts
        warmup.end = 1
        cosine.update(begin=1, end=epochs, T_max=epochs - 1)


def small_config(
    data, work_dir, *, name='imagenet_pola_swin_t', batch=4, epochs=3, workers=0, options=None
):
    """Shrink configs/`name`.py to three classes and one block per stage; `options` are as in `--cfg-options`."""
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    cfg.model.num_classes = 3
    cfg.model.backbone.update(pretrain_img_size=SIZE, drop_path_rate=0.2)
    cfg.model.backbone['arch'] = {
        'embed_dims': 8,
        'depths': (1, 1, 1, 1),
        'num_heads': (1, 2, 4, 4),
    }
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(
            batch_size=batch, num_workers=workers, persistent_workers=workers > 0, pin_memory=False
        )
        loader.dataset.root = f'{data}/{"train" if split == "train" else "val"}'
        loader.dataset.transform.input_size = SIZE
        if split != 'train':
            loader.dataset.classes = f'{data}/train'
    cfg.val_evaluator.topk = cfg.test_evaluator.topk = (1, 2)
    shorten_schedule(cfg.param_scheduler, epochs)
    cfg.train_cfg.max_epochs = epochs
    cfg.auto_scale_lr.base_batch_size = batch
    cfg.visualizer.vis_backends = [{'type': 'LocalVisBackend'}]
    cfg.work_dir, cfg.log_level = str(work_dir), 'WARNING'
    cfg.merge_from_dict(options or {})
    return cfg


def run(cfg, *hooks, resume=False):
    """Train and return the runner."""
    register_mmengine_reader()
    cfg = copy.deepcopy(cfg)
    cfg.resume = resume
    cfg.experiment_name = (
        uuid.uuid4().hex
    )  # MMEngine's default is the current second: two runs would share their log
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook, priority='ABOVE_NORMAL')
    runner.train()
    return runner


def assert_refused_at_the_start(data, work_dir, options, message):
    """A training with these `--cfg-options` ends in a ValueError that begins so and writes no checkpoint."""
    with pytest.raises(ValueError) as raised:
        run(small_config(data, work_dir, options=options))
    assert str(raised.value).startswith(message)
    assert not list(Path(work_dir).glob('*.pth'))


def saved(path):
    """Read weights, averages, optimizer, schedules, logged scalars and the name of the best file of a checkpoint."""
    checkpoint = read_checkpoint(path)
    scalars, information = (
        checkpoint['message_hub'][key] for key in ('log_scalars', 'runtime_info')
    )
    kept = {key: checkpoint[key] for key in STATES if key in checkpoint}
    timed = ('time', 'memory')
    kept['log'] = {
        key: value for key, value in scalars.items() if not any(word in key for word in timed)
    }
    kept['best'] = Path(information.get('best_ckpt', '')).name
    kept['meta'] = {key: checkpoint['meta'][key] for key in ('epoch', 'iter', 'seed')}
    return kept
