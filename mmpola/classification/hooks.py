"""Hooks that are about classes and their images: the number of classes, images that cannot be read."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from mmpola.messages import listed
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


@HOOKS.register_module()
class UnreadableImagesHook(Hook):
    """Logs after every epoch what `ClassFolders` could not read in it on any process; a path is named once in a run."""

    def __init__(self) -> None:
        self.met: list[str] = []
        self.named: set[str] = set()

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Take down the paths of this process."""
        for sample in data_batch['data_samples']:
            self.met += sample.metainfo.get('unreadable', ())

    def after_train_epoch(self, runner: Any) -> None:
        """Log the paths of all processes."""
        met = [path for part in all_gather_object(self.met) for path in part]
        self.met = []
        if not met:
            return
        new = sorted(set(met) - self.named)
        self.named.update(new)
        names = f'; not named before: {listed(new)}' if new else ''
        runner.logger.warning(
            f'{len(met)} images of epoch {runner.epoch + 1} could not be read and others were taken instead{names}'
        )


def _check(runner: Any, loader: Any, name: str) -> None:
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    classes = len(loader.dataset.metainfo['classes'])
    if classes != model.num_classes:
        raise ValueError(f'model.num_classes: expected {classes}, the classes of {name}, got {model.num_classes}')
