"""A resumed run says which settings of its optimizer and schedule are the checkpoint's."""

import pytest

from mmpola.engine.hooks.resumed import ResumedHook
from tests.helpers.training import Signal, run, small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]


@pytest.fixture
def resume(colours, tmp_path, warned):
    """A function that resumes an interrupted run with options, and returns the hook's lines."""

    def resume(options):
        with pytest.raises(SystemExit):
            run(small_config(colours, tmp_path), Signal(step=8))
        warned.clear()
        cfg = small_config(
            colours, tmp_path, options={'load_from': f'{tmp_path}/interrupted.pth', **options}
        )
        run(cfg, ResumedHook(cfg.load_from), resume=True)
        return [line for line in warned if line.startswith('resume: the learning rate')]

    return resume


def test_the_same_settings_need_no_line(resume):
    assert resume({}) == []


def test_other_settings_are_named_with_both_values(resume, tmp_path):
    options = {'optim_wrapper.optimizer.lr': 0.5, 'optim_wrapper.optimizer.weight_decay': 0.25}
    (line,) = resume({**options, 'param_scheduler.0.T_max': 40})
    assert 'param_scheduler continue as in the checkpoint: ' in line
    assert 'optim_wrapper.lr=' in line and '(config: 0.5)' in line
    assert 'optim_wrapper.weight_decay=' in line and '(config: 0.25)' in line
    assert 'param_scheduler.0.T_max=' in line
    assert line.endswith(f'--cfg-options load_from={tmp_path}/interrupted.pth')
