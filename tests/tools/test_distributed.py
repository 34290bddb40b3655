"""The launchers for several processes, and what a process that reads the training data says."""

import json
import re

import pytest
import torch

RECORDER = """
import json
from mmengine.config import config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

config.FormatCode = lambda text, **_: (text, True)  # formatting takes seconds in every process

@HOOKS.register_module()
class RankRecorder(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        weights = sum(p.detach().double().abs().sum().item() for p in runner.model.parameters())
        with open(f'{runner.work_dir}/rank{runner.rank}.jsonl', 'a') as file:
            line = {'images': len(data_batch['inputs']), 'weights': weights}
            file.write(json.dumps(line) + '\\n')
"""
RECORDED = """
_base_ = {base!r}
custom_imports = dict(imports=['rank_recorder'])
custom_hooks = [dict(type='RankRecorder')]
"""


@pytest.mark.slow
def test_two_processes_train_and_evaluate_a_segmenter(
    tiny_segmentation, run_tool, tmp_path, monkeypatch
):
    """Both have the same weights after every step; SyncBN is replaced, because there is no GPU."""
    (tmp_path / 'rank_recorder.py').write_text(RECORDER)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    config = tmp_path / 'recorded.py'
    work = tmp_path / 'work'
    config.write_text(RECORDED.format(base=str(tiny_segmentation)))
    options = [
        'train_cfg.max_iters=4',
        'train_cfg.val_interval=2',
        'default_hooks.logger.interval=2',
    ]
    options += ['default_hooks.checkpoint.interval=2']
    output = run_tool(
        'dist_train.sh', config, 2, '--work-dir', work, '--cfg-options', *options
    ).stdout
    assert 'no GPU: SyncBN, which needs CUDA, is replaced by BN' in output
    assert len(re.findall(r'Iter\(val\) \[\d+/\d+\].*mIoU: ', output)) == 2
    ranks = [
        [json.loads(line) for line in (work / f'rank{rank}.jsonl').read_text().splitlines()]
        for rank in (0, 1)
    ]
    assert len(ranks[0]) == 4
    assert ranks[0] == ranks[1]
    checkpoint = work / 'iter_4.pth'
    tensors = torch.load(checkpoint, map_location='cpu', weights_only=True)['state_dict'].values()
    assert all(torch.isfinite(x).all() for x in tensors)
    output = run_tool(
        'dist_test.sh', config, checkpoint, 2, '--work-dir', tmp_path / 'tested'
    ).stdout
    assert 'mIoU: ' in output
