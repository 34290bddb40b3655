"""A hook that checks the number of classes."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.config_tree import class_count_problems
from mmpola.registry import HOOKS


@HOOKS.register_module()
class ClassCountHook(Hook):
    """Checks that the model's `num_classes` is that of the data set, before training, validation and test.

    tools/train.py and tools/test.py check the config by the same rule; the hook covers other uses
    of MMEngine's Runner.

    Raises:
        ValueError: the numbers differ.
    """

    def before_train(self, runner: Any) -> None:
        """Check the training data."""
        _check(runner, runner.train_dataloader, 'train_dataloader')

    def before_val(self, runner: Any) -> None:
        """Check the validation data."""
        _check(runner, runner.val_dataloader, 'val_dataloader')

    def before_test(self, runner: Any) -> None:
        """Check the test data."""
        _check(runner, runner.test_dataloader, 'test_dataloader')


def _check(runner: Any, dataloader: Any, name: str) -> None:
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    predicted = [('model.num_classes', model.num_classes)]
    if problems := class_count_problems(predicted, dataloader.dataset.metainfo['classes'], name):
        raise ValueError('\n'.join(problems))
