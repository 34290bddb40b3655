"""Runs that are refused because model, metric or data sets have different numbers of classes."""

import pytest
from mmengine.runner import Runner

from tests.helpers.training import assert_refused_at_the_start, small_config

MODEL = {'model.num_classes': 4}


def test_refused_before_the_first_step(colours, tmp_path):
    message = 'model.num_classes: expected 3, the number of classes in train_dataloader'
    assert_refused_at_the_start(colours, tmp_path, MODEL, message)


def test_a_test_of_other_classes_is_refused(colours, tmp_path):
    runner = Runner.from_cfg(small_config(colours, tmp_path, options=MODEL))
    with pytest.raises(ValueError, match=r'^model\.num_classes: expected 3') as raised:
        runner.test()
    assert 'test_dataloader (blue, green, red), got 4' in str(raised.value)
