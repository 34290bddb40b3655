"""Arguments and training loops that PreemptionHook refuses; tests/engine/test_loop.py resumes what it saved."""

import pytest

from mmpola.engine.hooks import PreemptionHook
from tests.helpers.small_training import run, small_config


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'signals': ('SIGTERM', 'USR1')}, 'signals: expected names such as SIGTERM, got USR1'),
        ({'interval': 0}, 'interval: expected an integer from 1, got 0'),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError) as raised:
        PreemptionHook(**arguments)
    assert str(raised.value) == message


def test_another_loop_is_refused_before_the_first_step(colours, tmp_path):
    with pytest.raises(ValueError) as raised:
        run(small_config(colours, tmp_path, options={'train_cfg.type': 'EpochBasedTrainLoop'}))
    assert str(raised.value) == (
        "train_cfg.type: expected 'mmpola.ExactEpochLoop', which can resume in the middle of an epoch, got "
        'EpochBasedTrainLoop'
    )
    assert not list(tmp_path.glob('*.pth'))
