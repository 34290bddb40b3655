"""Names the training images that could not be read, and counts how often others stood for them."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook

from mmpola.log import listed
from mmpola.registry import HOOKS


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
