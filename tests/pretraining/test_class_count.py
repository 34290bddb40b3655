"""Runs that are refused because model, metric or data sets have different numbers of classes."""

from mmengine.runner import Runner

from tests.helpers.refusals import refusal
from tests.helpers.training import assert_refused_at_the_start, small_config

MODEL = {'model.num_classes': 4}


def test_refused_before_the_first_step(colours, tmp_path):
    message = 'model.num_classes: expected 3, the number of classes in train_dataloader'
    assert_refused_at_the_start(colours, tmp_path, MODEL, message)


def test_a_test_of_other_classes_is_refused(colours, tmp_path):
    runner = Runner.from_cfg(small_config(colours, tmp_path, options=MODEL))
    message = refusal(runner.test)
    assert message.startswith('model.num_classes: expected 3')
    assert message.endswith('test_dataloader (blue, green, red), got 4 [class-count]')


def test_a_skipped_check_is_not_made_by_the_hook_either(colours, tmp_path):
    cfg = small_config(colours, tmp_path, options=MODEL)
    cfg.data_checks = dict(skip=['class-count'])
    cfg.test_evaluator.topk = (1,)
    assert Runner.from_cfg(cfg).test().keys() == {'accuracy/top1'}
