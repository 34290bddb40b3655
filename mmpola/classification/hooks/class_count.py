"""Refuses data whose classes are not as many as the model's."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.registry import HOOKS


@HOOKS.register_module()
class ClassCountHook(Hook):
    """Compares the model's `num_classes` with the classes in a data set's `metainfo` before training, validation, test.

    Raises:
        ValueError: they differ.
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


def _check(runner: Any, loader: Any, name: str) -> None:
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    classes = len(loader.dataset.metainfo['classes'])
    if classes != model.num_classes:
        raise ValueError(f'model.num_classes: expected {classes}, the classes of {name}, got {model.num_classes}')
