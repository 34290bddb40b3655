"""A hook that checks the number of classes."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.messages import UsageError
from mmpola.openmmlab.config.contents import class_count_problems, skipped_checks


class ClassCountHook(Hook):
    """Checks the model's `num_classes` against the data set, before training, validation and test.

    tools/train.py and tools/test.py check the config by the same rule; the hook covers other uses
    of MMEngine's Runner. `data_checks.skip` of the config leaves out 'class-count'.

    Raises:
        UsageError: the numbers differ.
    """

    def before_train(self, runner: Any) -> None:
        """Check the training data."""
        _check_class_count(runner, 'train_dataloader')

    def before_val(self, runner: Any) -> None:
        """Check the validation data."""
        _check_class_count(runner, 'val_dataloader')

    def before_test(self, runner: Any) -> None:
        """Check the test data."""
        _check_class_count(runner, 'test_dataloader')


def _check_class_count(runner: Any, loader: str) -> None:
    model = runner.model
    if is_model_wrapper(model):
        model = model.module
    predicted = [('model.num_classes', model.num_classes)]
    classes = getattr(runner, loader).dataset.metainfo.get('classes')
    if classes is None or 'class-count' in skipped_checks(runner.cfg):  # None: without labels
        return
    problems = class_count_problems(predicted, classes, loader)
    if problems:
        raise UsageError(f'{problems[0]} [class-count]')
