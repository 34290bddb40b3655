"""A hook that checks the number of classes."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.config_contents import class_count_problems


class ClassCountHook(Hook):
    """Checks the model's `num_classes` against the data set, before training, validation and test.

    tools/train.py and tools/test.py check the config by the same rule; the hook covers other uses
    of MMEngine's Runner.

    Raises:
        ValueError: the numbers differ.
    """

    def before_train(self, runner: Any) -> None:
        """Check the training data."""
        _check_class_count(runner.model, runner.train_dataloader, 'train_dataloader')

    def before_val(self, runner: Any) -> None:
        """Check the validation data."""
        _check_class_count(runner.model, runner.val_dataloader, 'val_dataloader')

    def before_test(self, runner: Any) -> None:
        """Check the test data."""
        _check_class_count(runner.model, runner.test_dataloader, 'test_dataloader')


def _check_class_count(model: Any, dataloader: Any, dataloader_key: str) -> None:
    if is_model_wrapper(model):
        model = model.module
    predicted = [('model.num_classes', model.num_classes)]
    classes = dataloader.dataset.metainfo.get('classes')
    if classes is None:  # images without labels
        return
    problems = class_count_problems(predicted, classes, dataloader_key)
    if problems:
        raise ValueError('\n'.join(problems))
