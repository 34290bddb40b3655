"""A hook that checks the number of classes."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook

from mmpola.messages import UsageError
from mmpola.openmmlab.checks.read import Data
from mmpola.openmmlab.checks.table import CHECKS, ERROR, Run, names_to_skip

NAME = 'class-count'
"""Of the check."""


class ClassCountHook(Hook):
    """Checks the model's `num_classes` against the data set, before training, validation and test.

    tools/train.py and tools/test.py ask the same check before they build the model; the hook covers
    other uses of MMEngine's Runner. `data_checks.skip` of the config leaves out 'class-count'.

    Raises:
        UsageError: the numbers differ.
    """

    def before_train(self, runner: Any) -> None:
        """Check the training data."""
        _check_class_count(runner, 'train')

    def before_val(self, runner: Any) -> None:
        """Check the validation data."""
        _check_class_count(runner, 'val')

    def before_test(self, runner: Any) -> None:
        """Check the test data."""
        _check_class_count(runner, 'test')


def _check_class_count(runner: Any, split: str) -> None:
    if NAME in names_to_skip(runner.cfg):
        return
    dataset = getattr(runner, f'{split}_dataloader').dataset
    data = Data(runner.cfg, {}, [split], dataset=dataset)
    for found in CHECKS[NAME].findings(Run(runner.cfg, [split], False, [data])):
        if found.level == ERROR:
            raise UsageError(found.line)
