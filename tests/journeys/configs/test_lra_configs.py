"""The Long Range Arena's configs train on any data set of token sequences."""

import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement

from mmpola.openmmlab.start.fit import read_training_checkpoint
from mmpola.registry import DATASETS as OUR_DATASETS
from tests.configs.test_lra_configs import read_config
from tests.helpers.training import Signal, assert_same, run, saved

pytestmark = pytest.mark.usefixtures('unformatted_configs')


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
