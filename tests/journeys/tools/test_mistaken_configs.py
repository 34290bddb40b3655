"""What a user misspells in a config ends a run before its first step, in one line with the key."""

import pytest

from tests.helpers.processes import run_script
from tests.helpers.training import small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]

MISTAKES = {
    'val_evaluator.topks': (1,),
    'train_dataloader.pin_memorys': True,
    'train_dataloader.batch_size': 'a',
    'train_dataloader.num_workers': -1,
    'val_dataloader.sampler.shuffel': True,
    'train_dataloader.dataset.rooot': 'x',
    'param_scheduler.0.T_maxx': 3,
    'optim_wrapper.optimizer.lrs': 1,
    'optim_wrapper.optimizer.type': 'AdamWW',
    'optim_wrapper.clip_grads': 1,
    'default_hooks.checkpoint.intervals': 1,
    'default_hooks.checkpoint.type': 'CheckpointHok',
    'train_cfg.type': 'ExactEpochLop',
    'train_cfg.max_epochs': 'a',
    'randomness': {'seeds': 1},
    'visualizer.vis_backends': [{'type': 'Nope'}],
    'train_dataloader': 1,
    'val_dataloader': 1,
    'optim_wrapper': None,
    'auto_scale_lr': 1,
    'model': 1,
    'data_checks': {'skips': ['trial']},
    'data_checks.skip': ['clas-count'],
}


@pytest.mark.parametrize('key', MISTAKES)
def test_the_key_is_named(key, colours, tmp_path, capsys):
    cfg = small_config(colours, tmp_path / 'unused')
    cfg.merge_from_dict({key: MISTAKES[key]}) if key.count('.') else cfg.update(
        {key: MISTAKES[key]}
    )
    config = tmp_path / 'mistaken.py'
    cfg.dump(config)
    work = tmp_path / 'work'
    assert run_script('train', config, '--work-dir', work) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith('error: ')
    words = key.split('.')
    assert words[0] in error
    assert words[-1] in error or 'Nope' in error or str(MISTAKES[key]) in error
    assert not list(work.glob('*.pth'))


@pytest.mark.parametrize('name', ['a\nb', '-x', 'file', 'x' * 300])
def test_a_work_dir_that_cannot_be_one(name, colours, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').touch()
    config = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'unused').dump(config)
    assert run_script('train', config, f'--work-dir={name}') == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith('error: ')
    assert error.count('\n') == 0
