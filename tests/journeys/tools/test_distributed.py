"""The launchers for several processes, and what a process that reads the training data says."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmpola.command import usable_cores

RECORDER = """
import atexit
import json
import os
from pathlib import Path
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

@atexit.register
def record_threads():
    names = [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]
    Path(__file__).with_name(f'threads{os.environ["RANK"]}.txt').write_text(''.join(names))

@HOOKS.register_module()
class FailsInOne(Hook):
    priority = 'LOWEST'

    def __init__(self, rank, signal=None):
        self.rank = rank
        self.signal = signal

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.rank == self.rank and runner.iter + 1 == 3:
            if self.signal is None:
                raise RuntimeError('broken')
            os.kill(os.getpid(), self.signal)
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
    """Both have the same weights after every step; SyncBN is replaced, because there is no GPU.

    The config has hooks of MMEngine only. Validation scores what the checkpoint has, statistics of
    BatchNorm included.
    """
    (tmp_path / 'rank_recorder.py').write_text(RECORDER)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    config = tmp_path / 'recorded.py'
    work = tmp_path / 'work'
    hooks = (
        "checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=2)\n"
        "logger = dict(type='LoggerHook', interval=2)\n"
        'default_hooks = dict(_delete_=True, checkpoint=checkpoint, logger=logger)\n'
    )
    config.write_text(RECORDED.format(base=str(tiny_segmentation)) + hooks)
    options = ['train_cfg.max_iters=4', 'train_cfg.val_interval=2']
    output = run_tool(
        'dist_train.sh', config, 2, '--work-dir', work, '--cfg-options', *options
    ).stdout
    assert 'no GPU: SyncBN, which needs CUDA, is replaced by BN' in output
    assert len(re.findall(r'^ +step +loss .* mIoU ', output, re.MULTILINE)) == 1
    assert len(re.findall(r'^ {6}[24]  ', output, re.MULTILINE)) == 2
    validated = re.findall(r'Iter\(val\).* mIoU: ([\d.]+) ', output)[-1]
    ranks = [
        [json.loads(line) for line in (work / f'rank{rank}.jsonl').read_text().splitlines()]
        for rank in (0, 1)
    ]
    assert len(ranks[0]) == 4
    assert ranks[0] == ranks[1]
    checkpoint = work / 'iter_4.pth'
    tensors = torch.load(checkpoint, map_location='cpu', weights_only=True)['state_dict'].values()
    assert all(torch.isfinite(x).all() for x in tensors)
    assert threads_at_exit(tmp_path) == {0: [], 1: []}
    output = run_tool(
        'dist_test.sh', config, checkpoint, 2, '--work-dir', tmp_path / 'tested'
    ).stdout
    assert f' mIoU: {validated} ' in output
    assert threads_at_exit(tmp_path) == {0: [], 1: []}


def threads_at_exit(folder):
    """Return the names of the process group's threads at the exit of each process, by rank.

    One that needs Python while it is torn down aborts the process, after all work is done.
    """
    files = {rank: folder / f'threads{rank}.txt' for rank in (0, 1)}
    names = {rank: file.read_text().splitlines() for rank, file in files.items()}
    for file in files.values():
        file.unlink()
    return {rank: [name for name in names[rank] if 'gloo' in name] for rank in names}


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_process_that_fails_leaves_the_last_step_of_the_first(
    rank, tiny_segmentation, run_tool, tmp_path, monkeypatch
):
    """The processes had equal weights; the others wait for the one that fails."""
    (tmp_path / 'rank_recorder.py').write_text(RECORDER)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    config = tmp_path / 'fails.py'
    config.write_text(RECORDED.format(base=str(tiny_segmentation)))
    work = tmp_path / 'work'
    options = ['train_cfg.max_iters=4', 'train_cfg.val_interval=4']
    with config.open('a') as file:
        file.write(f"custom_hooks.append(dict(type='FailsInOne', rank={rank}))\n")
    arguments = (config, 2, '--work-dir', work, '--resume', '--cfg-options', *options)
    failed = run_tool('dist_train.sh', *arguments, check=False)
    assert failed.returncode == 1
    assert 'RuntimeError: broken' in failed.stdout
    saved = torch.load(work / 'interrupted.pth', weights_only=True)
    assert saved['meta']['iter'] == 3
    ranks = [(work / f'rank{number}.jsonl').read_text().splitlines() for number in (0, 1)]
    assert ranks[0][:3] == ranks[1][:3]
    found = sum(x.double().abs().sum().item() for x in parameters(saved, tiny_segmentation))
    assert found == pytest.approx(json.loads(ranks[0][2])['weights'], rel=1e-12)
    assert f'--resume continues from {work}/interrupted.pth' in failed.stdout

    if rank == 1:
        return
    config.write_text(RECORDED.format(base=str(tiny_segmentation)))
    run_tool('dist_train.sh', *arguments)
    assert (work / 'iter_4.pth').exists()
    assert len((work / 'rank0.jsonl').read_text().splitlines()) == 4


@pytest.mark.slow
def test_a_signal_ends_all_processes_and_they_resume_from_the_same_step_or_not_at_all(
    tiny_segmentation, run_tool, tmp_path, monkeypatch
):
    """Machines that share no disk have different work dirs."""
    (tmp_path / 'rank_recorder.py').write_text(RECORDER)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    config = tmp_path / 'ends.py'
    work = tmp_path / 'work'
    text = RECORDED.format(base=str(tiny_segmentation))
    text += f'work_dir = {str(work)!r}\n'
    hook = f"dict(type='FailsInOne', rank=1, signal={int(signal.SIGTERM)})"
    config.write_text(f'{text}custom_hooks.append({hook})\n')
    options = ['train_cfg.max_iters=6', 'train_cfg.val_interval=6']
    options += ['default_hooks.preemption.interval=1']
    arguments = (config, 2, '--resume', '--cfg-options', *options)
    ended = run_tool('dist_train.sh', *arguments, check=False).stdout
    assert f'--resume continues from {work}/interrupted.pth (exit status 75)' in ended
    assert threads_at_exit(tmp_path) == {0: [], 1: []}

    config.write_text(f"{text}import os\nwork_dir += os.environ['RANK'].strip('0')\n")
    refused = run_tool('dist_train.sh', *arguments, check=False)
    assert refused.returncode != 0
    assert 'same step, got 4 steps in the first and 0 steps in this one' in refused.stdout
    assert (work / 'interrupted.pth').exists()


def test_processes_share_the_cores(root, tmp_path):
    """Torchrun's place is taken by a script that prints what it gets."""
    python = tmp_path / 'python'
    python.write_text(
        '#!/bin/sh\n'
        f'if [ "$1" != -m ]; then exec "{sys.executable}" "$@"; fi\n'
        'echo "threads $OMP_NUM_THREADS"\n'
    )
    python.chmod(0o755)
    path = f'{tmp_path}:{os.environ["PATH"]}'
    outputs = []
    for others in ({}, {'OMP_NUM_THREADS': '7'}):
        environment = {'PATH': path, 'VIRTUAL_ENV': str(tmp_path), **others}
        command = ['bash', str(root / 'tools' / 'dist_train.sh'), 'config.py', '1']
        done = subprocess.run(
            command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True
        )
        outputs.append(done.stdout)
    assert outputs == [f'threads {usable_cores()}\n', 'threads 7\n']


def parameters(checkpoint, config):
    """Return the parameters of a config's model in a checkpoint, without its buffers."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    names = [name for name, _ in MODELS.build(cfg.model).named_parameters()]
    return [checkpoint['state_dict'][name] for name in names]
