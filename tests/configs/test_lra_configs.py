"""The Long Range Arena's configs equal the published settings."""

import itertools

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS

TASKS = {
    'listops': (32, 1e-4, 1000, 500, 'ListOps', 'listops-1000', 209_802),
    'text': (32, 1e-4, 80, 500, 'ByteText', 'aclImdb', 370_562),
    'retrieval': (16, 2e-4, 800, 1000, 'Retrieval', 'tsv_data', 395_138),
    'pathfinder': (128, 5e-4, 312, 500, 'Pathfinder', 'pathfinder32', 173_954),
    'image': (256, 1e-4, 175, 50, 'GreyCIFAR', 'cifar-10-batches-py', 158_602),
}
"""Task -> batch, learning rate, warm-up, evaluation interval, data set, folder, parameters of the
softmax model.
"""

VARIANTS = {
    'pola_a3': ('pola', 3, 8_960),
    'pola_a5': ('pola', 5, 8_960),
    'pola_a7': ('pola', 7, 8_960),
    'polaformer_pp': ('polaformer_pp', None, 9_600),
    'softmax': ('softmax', None, 0),
    'linear': ('linear', None, 0),
}
"""Variant -> attention, alpha, additional parameters."""


def read_config(root, name):
    return Config.fromfile(root / 'configs' / f'{name}.py')


def test_every_config_is_compared(root):
    expected = {f'lra_{task}_{variant}' for task, variant in itertools.product(TASKS, VARIANTS)}
    assert {path.stem for path in (root / 'configs').glob('lra_*.py')} == expected | {
        'lra_listops_small'
    }


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('task', TASKS)
def test_the_published_settings(task, variant, root):
    batch, rate, warmup, interval, dataset, folder, parameters = TASKS[task]
    attention, alpha, extra = VARIANTS[variant]
    cfg = read_config(root, f'lra_{task}_{variant}')
    for split, name in (('train', 'train'), ('val', 'dev'), ('test', 'test')):
        loader = cfg[f'{split}_dataloader']
        assert loader.dataset == {
            'type': f'mmpola.{dataset}',
            'root': f'data/lra/{folder}',
            'split': name,
        }
        assert loader.batch_size == batch
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (50_000, interval)
    assert cfg.train_cfg.val_begin == 10_001  # Skyformer, src/main.py:158
    assert (cfg.param_scheduler[0].end, cfg.optim_wrapper.optimizer.lr) == (warmup, rate)
    assert (cfg.optim_wrapper.optimizer.eps, cfg.optim_wrapper.optimizer.weight_decay) == (
        1e-6,
        0.0,
    )
    assert cfg.optim_wrapper.clip_grad == {'type': 'value', 'clip_value': 1.0}
    encoder = cfg.model.backbone
    assert (encoder.attention, encoder.get('alpha'), encoder.mask) == (attention, alpha, 'padding')
    assert encoder.get('attn_drop') == (
        0.1 if variant == 'softmax' else None
    )  # Skyformer, src/config.py:25
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert sum(p.numel() for p in model.parameters()) == parameters + extra


def test_the_schedule_is_torchs_one_cycle(root):
    """Learning rate and first beta of every step, with a shorter cycle."""
    steps, warmup, rate = 60, 12, 1e-4
    cfg = read_config(root, 'lra_listops_softmax')
    model = torch.nn.Linear(1, 1)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    schedulers = []
    for part, (begin, end) in zip(
        cfg.param_scheduler, [(0, warmup), (warmup - 1, steps)] * 2, strict=True
    ):
        arguments = {**part, 'optimizer': optimizer, 'begin': begin, 'end': end}
        schedulers.append(PARAM_SCHEDULERS.build(arguments))
    expected = torch.optim.AdamW(model.parameters())
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        expected, rate, total_steps=steps, pct_start=warmup / steps, anneal_strategy='linear'
    )
    for step in range(steps):
        (ours,), (theirs,) = optimizer.param_groups, expected.param_groups
        assert ours['lr'] == pytest.approx(theirs['lr'], rel=1e-6), step
        assert ours['betas'][0] == pytest.approx(theirs['betas'][0], rel=1e-6), step
        if step < steps - 1:
            for scheduler in (*schedulers, cycle):
                optimizer.step(), expected.step()
                scheduler.step()
