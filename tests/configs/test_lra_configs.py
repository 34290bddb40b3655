"""The Long Range Arena's configs equal the published settings, and train on any data set of token
sequences.
"""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS
from mmengine.structures import BaseDataElement

from mmpola.engine.training_checkpoint import read_training_checkpoint
from mmpola.registry import DATASETS as OUR_DATASETS
from tests.helpers.training import Signal, assert_same, run, saved

pytestmark = pytest.mark.usefixtures('unformatted_configs')

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


@OUR_DATASETS.register_module()
class DrawnSequences(torch.utils.data.Dataset):
    """Random sequences of two classes, told apart by their tokens."""

    def __init__(self, number=16, pairs=False):
        self.number, self.pairs = number, pairs
        self.metainfo = {'classes': ('low', 'high')}

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        generator, label = torch.Generator().manual_seed(index), index % 2
        first, second = (
            torch.randint(1 + 9 * label, 10 + 9 * label, (n,), generator=generator)
            for n in (9, 5 + index)
        )
        inputs = (first, second) if self.pairs else second
        return {'inputs': inputs, 'data_samples': BaseDataElement(gt_label=label)}


def small(root, name, work, *, steps, workers=0):
    """Shrink a config to some steps on generated sequences of up to 32 tokens."""
    cfg = read_config(root, name)
    assert DATASETS.get(cfg.train_dataloader.dataset.type)
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(batch_size=8, num_workers=workers, persistent_workers=workers > 0)
        loader.dataset = {'type': 'mmpola.DrawnSequences', 'pairs': 'retrieval' in name}
    cfg.model.backbone.update(length=32, depth=1)
    cfg.optim_wrapper.optimizer.lr = 1e-2
    cfg.param_scheduler = []
    cfg.train_cfg.update(max_iters=steps, val_begin=1, val_interval=steps // 2)
    cfg.visualizer.vis_backends = [{'type': 'LocalVisBackend'}]
    cfg.work_dir, cfg.log_level = str(work), 'WARNING'
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    ['lra_text_pola_a3', 'lra_text_polaformer_pp', 'lra_retrieval_softmax', 'lra_text_linear'],
)
def test_it_learns_and_the_best_checkpoint_is_tested_once(name, root, tmp_path):
    runner = run(small(root, name, tmp_path, steps=30))
    assert runner.message_hub.get_scalar('val/accuracy/top1').current() == 100.0
    assert runner.message_hub.get_scalar('test/accuracy/top1').data[0].tolist() == [100.0]
    (best,) = tmp_path.glob('best_accuracy_top1_iter_*.pth')
    saved = read_training_checkpoint(str(best)).content['state_dict']
    for key, value in runner.model.state_dict().items():
        assert torch.equal(saved[key], value), key


@pytest.mark.slow
def test_validations_are_logged_at_their_steps(root, tmp_path):
    cfg = small(root, 'lra_text_softmax', tmp_path, steps=7)  # validates every third step
    cfg.log_level = 'INFO'
    runner = run(cfg)
    rows = [
        json.loads(line)
        for line in Path(runner.log_dir, 'vis_data', 'scalars.json').read_text().splitlines()
    ]
    assert [row['step'] for row in rows if 'accuracy/top1' in row] == [3, 6, 7]
    (log,) = Path(runner.log_dir).glob('*.log')
    lines = re.findall(r'Iter\(val\) \[2/2\] (.*)', log.read_text())
    assert [re.findall(r'(\S+): ', line) for line in lines] == [
        ['accuracy/top1', 'data_time', 'time']
    ] * 3


@pytest.mark.slow
def test_a_run_that_is_interrupted_in_validation_ends_with_the_same_bits(root, tmp_path):
    def config(work):
        cfg = small(root, 'lra_text_pola_a3', tmp_path / work, steps=12, workers=2)
        cfg.randomness = {'seed': 3}
        cfg.default_hooks.checkpoint.interval = 12
        return cfg

    whole = run(config('whole'))
    with pytest.raises(SystemExit) as raised:
        run(config('parts'), Signal(epoch=0))
    assert raised.value.code == 75
    resumed = run(config('parts'), resume=True)
    scores = [
        runner.message_hub.get_scalar('val/accuracy/top1').data[0].tolist()
        for runner in (whole, resumed)
    ]
    assert len(scores[0]) == 2 and scores[0] == scores[1]
    assert_same(
        saved(tmp_path / 'parts' / 'iter_12.pth'), saved(tmp_path / 'whole' / 'iter_12.pth')
    )
