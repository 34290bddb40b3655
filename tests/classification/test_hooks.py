"""Runs that are refused because model, metric and data sets have different numbers of classes."""

import pytest
from mmengine.runner import Runner

from tests.helpers.small_training import run, small_config

CLASSES = '(blue, green, red)'
REFUSED = {
    'model': (
        {'model.num_classes': 4},
        f'model.num_classes: expected 3, the number of classes in train_dataloader {CLASSES}, got 4',
    ),
    'topk': (
        {'val_evaluator.topk': (1, 5)},
        'topk: expected at most the number of classes, 3, got 5',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_refused_before_the_first_step(case, colours, tmp_path):
    options, message = REFUSED[case]
    with pytest.raises(ValueError) as raised:
        run(small_config(colours, tmp_path, options=options))
    assert str(raised.value) == message
    assert not list(tmp_path.glob('*.pth'))


def test_a_test_of_other_classes_is_refused(colours, tmp_path):
    runner = Runner.from_cfg(small_config(colours, tmp_path, options={'model.num_classes': 4}))
    with pytest.raises(ValueError) as raised:
        runner.test()
    assert str(raised.value) == (
        f'model.num_classes: expected 3, the number of classes in test_dataloader {CLASSES}, got 4'
    )
