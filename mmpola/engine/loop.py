"""An epoch-based training loop in which every step depends only on the run's seed and the step's number."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.dist import broadcast_object_list, get_rank, get_world_size
from mmengine.runner import EpochBasedTrainLoop

from mmpola.engine.draws import STEP, DrawSampler, seed_generators
from mmpola.registry import LOOPS

POSITION = 'epoch_position'
"""Key in MMEngine's message hub, which every checkpoint holds, of the step at which the current epoch began."""


@LOOPS.register_module()
class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop, which can also resume in the middle of an epoch.

    A checkpoint from the middle of an epoch, whichever hook wrote it, resumes with exactly the remaining samples and
    the same random numbers. On a CPU, and on one GPU with deterministic algorithms, the weights are then bit for bit
    those of an uninterrupted run; several GPUs add gradients in an order that may change.

    All generators are seeded before every step from the run's seed, the step's number and the rank. The random numbers
    of dropout, drop path and mixup therefore depend neither on earlier steps nor on validation, and no generator state
    is saved.

    Args:
        runner, dataloader, max_epochs, val_begin, val_interval: as in EpochBasedTrainLoop; the dataloader's sampler is
            a `DrawSampler`.

    Raises:
        ValueError: the sampler is of another type, or there are fewer images than a batch.
    """

    def __init__(self, runner: Any, dataloader: Any, max_epochs: int, **options: Any) -> None:
        super().__init__(runner, dataloader, max_epochs, **options)
        sampler, batch = self.dataloader.sampler, self.dataloader.batch_size
        if not isinstance(sampler, DrawSampler):
            raise ValueError(
                f"train_dataloader.sampler: expected type='mmpola.DrawSampler', got {type(sampler).__name__}"
            )
        if len(self.dataloader) == 0:
            raise ValueError(
                f'train_dataloader: expected at least one batch of {batch}, got {len(sampler)} images per process with '
                'drop_last=True'
            )
        self.images_per_step = get_world_size() * batch

    def run(self) -> torch.nn.Module:
        """Train; after resuming, with the seed of the checkpoint."""
        seeds = [self.runner.seed]
        broadcast_object_list(seeds)
        self.seed = self.dataloader.sampler.seed = seeds[0]
        if len(self.dataloader) % self.runner.optim_wrapper._accumulative_counts:
            self.runner.logger.warning(
                'the steps of an epoch are not a multiple of accumulative_counts: resuming from the end of an epoch '
                'loses the gradients accumulated until then'
            )
        return super().run()

    def run_epoch(self) -> None:
        """Run an epoch, or the rest of one that was interrupted.

        Raises:
            ValueError: the interrupted training had another number of images per step.
        """
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._steps_done()
        self.dataloader.sampler.start = done * self.dataloader.batch_size
        for index, batch in enumerate(self.dataloader, start=done):
            self.run_iter(index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Seed the generators and run a step."""
        rank = get_rank()
        seed_generators(STEP, self.seed, self._iter, rank)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(torch.default_generator.initial_seed())
        super().run_iter(idx, data_batch)

    def _steps_done(self) -> int:
        """Return how many steps of this epoch were done before the checkpoint was written."""
        hub = self.runner.message_hub
        began = hub.runtime_info.get(POSITION)
        if began and began['images_per_step'] != self.images_per_step:
            raise ValueError(
                f'resume: expected {began["images_per_step"]} images per step (processes x '
                f'train_dataloader.batch_size) as before, got {self.images_per_step}; the learning rate and its '
                'schedule belong to that number'
            )
        if began and began['epoch'] == self._epoch:
            return self._iter - began['iter']
        position = {'epoch': self._epoch, 'iter': self._iter, 'images_per_step': self.images_per_step}
        hub.update_info(POSITION, position)
        return 0
