"""A resumed run says which settings of its optimizer and schedule are the checkpoint's."""

import shutil

import pytest
import torch

from mmpola.openmmlab.start.resumed import ResumedHook
from tests.helpers.processes import run_script
from tests.helpers.training import Signal, run, small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]


def test_other_settings_are_named_with_both_values(colours, tmp_path, warned):
    """The same settings need no line."""
    with pytest.raises(SystemExit):
        run(small_config(colours, tmp_path), Signal(step=8))
    start = str(shutil.copy(tmp_path / 'interrupted.pth', tmp_path / 'start.pth'))
    others = {
        'optim_wrapper.optimizer.lr': 0.5,
        'optim_wrapper.optimizer.weight_decay': 0.25,
        'param_scheduler.0.T_max': 40,
    }
    for options in ({}, others):
        warned.clear()
        cfg = small_config(colours, tmp_path, options={'load_from': start, **options})
        run(cfg, ResumedHook(start), resume=True)
        lines = [line for line in warned if line.startswith('resume: the learning rate')]
        assert bool(lines) == bool(options)
    (line,) = lines
    assert 'param_scheduler continue as in the checkpoint: ' in line
    assert 'optim_wrapper.lr=' in line and '(config: 0.5)' in line
    assert 'optim_wrapper.weight_decay=' in line and '(config: 0.25)' in line
    assert 'param_scheduler.0.T_max=' in line
    assert line.endswith(f'--cfg-options load_from={start}')


@pytest.mark.parametrize('wrap', ['module._orig_mod.{}', '_orig_mod.{}'])
def test_a_checkpoint_with_the_names_of_wrappers_resumes_like_any_other(colours, tmp_path, wrap):
    """With averaged weights; MMEngine would leave out the names and start from random weights."""
    ema = {'default_hooks.average.type': 'EMAHook'}
    with pytest.raises(SystemExit):
        run(small_config(colours, tmp_path, options=ema), Signal(step=8))
    start = tmp_path / 'start.pth'
    shutil.copy(tmp_path / 'interrupted.pth', start)
    ends = []
    for wrapped in (False, True):
        content = torch.load(start)
        if wrapped:
            plain = content['state_dict']
            content['state_dict'] = {wrap.format(name): x for name, x in plain.items()}
            averaged = content['ema_state_dict']
            content['ema_state_dict'] = {
                name.replace('module.', 'module._orig_mod.', 1): x for name, x in averaged.items()
            }
        path = str(tmp_path / 'again.pth')
        torch.save(content, path)
        cfg = small_config(colours, tmp_path, options={'load_from': path, **ema})
        ends.append(run(cfg, ResumedHook(path), resume=True))
    weights = [runner.model.state_dict() for runner in ends]
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


def test_a_checkpoint_whose_optimizer_has_other_parameters(colours, tmp_path, capsys):
    """As after training with a frozen backbone."""
    config = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'unused').dump(config)
    work = ('--work-dir', tmp_path / 'work', '--cfg-options')
    frozen = 'model.backbone.frozen_stages=2'
    assert run_script('train', config, *work, 'train_cfg.max_epochs=1', frozen) == 0
    capsys.readouterr()
    assert run_script('train', config, *work[:2], '--resume') == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert f'load_from={tmp_path}/work/epoch_1.pth' in error
    assert error.count('\n') == 1
