"""Hooks about classes and their images: the number of classes, images that cannot be read."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.data.class_counts import class_count_problems
from mmpola.messages import listed
from mmpola.registry import HOOKS


@HOOKS.register_module()
class ClassCountHook(Hook):
    """Compares the model's `num_classes` with the data set's `metainfo` before training, validation and test.

    tools/train.py and tools/test.py check the config by the same rule; the hook covers other uses of MMEngine's Runner.

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


@HOOKS.register_module()
class UnreadableImagesHook(Hook):
    """Logs after every epoch which images `ClassFolders` could not read on any process; each path is logged once."""

    def __init__(self) -> None:
        self.paths: list[str] = []  # of this epoch and process
        self.logged: set[str] = set()

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Collect the paths of this process."""
        for sample in data_batch['data_samples']:
            self.paths += sample.metainfo.get('unreadable', ())

    def after_train_epoch(self, runner: Any) -> None:
        """Log the paths of all processes."""
        paths = [path for part in all_gather_object(self.paths) for path in part]
        self.paths = []
        if not paths:
            return
        new = sorted(set(paths) - self.logged)
        self.logged.update(new)
        names = f'; not logged before: {listed(new)}' if new else ''
        runner.logger.warning(
            f'{len(paths)} images of epoch {runner.epoch + 1} could not be read and were replaced by others{names}'
        )


def _check(runner: Any, dataloader: Any, name: str) -> None:
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    predicted = [('model.num_classes', model.num_classes)]
    if problems := class_count_problems(predicted, dataloader.dataset.metainfo['classes'], name):
        raise ValueError('\n'.join(problems))
