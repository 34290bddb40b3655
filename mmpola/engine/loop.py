"""Training by epochs in which every step is a function of the run's seed and the step's number."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.dist import broadcast_object_list, get_rank, get_world_size
from mmengine.runner import EpochBasedTrainLoop

from mmpola.engine.draws import STEP, DrawSampler, seed_generators
from mmpola.registry import LOOPS

POSITION = 'epoch_position'
"""Name in MMEngine's message hub, which every checkpoint holds, of where the current epoch began."""


@LOOPS.register_module()
class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop that goes on from the middle of an epoch with its samples and random numbers.

    On a CPU, and on one GPU with deterministic algorithms, the weights are those of a run that did not stop, bit for
    bit; several GPUs add gradients in an order that a restart may change. A checkpoint written in the middle of an
    epoch, whoever wrote it, resumes with exactly the samples that were left. All generators are seeded before every
    step from the seed, the number of the step and the rank, so what dropout, drop path and mixup draw depends neither
    on the steps before nor on validation, and no generator's state is saved.

    Args:
        runner, dataloader, max_epochs, val_begin, val_interval: as in EpochBasedTrainLoop; the loader's sampler is a
            `DrawSampler`.

    Raises:
        ValueError: another sampler, or fewer images than a batch.
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
                f'train_dataloader: {len(sampler)} images per process make no batch of {batch} with drop_last=True'
            )
        self.images_per_step = get_world_size() * batch

    def run(self) -> torch.nn.Module:
        """Launch training, under the checkpoint's seed where it goes on from one."""
        seeds = [self.runner.seed]
        broadcast_object_list(seeds)
        self.seed = self.dataloader.sampler.seed = seeds[0]
        if len(self.dataloader) % self.runner.optim_wrapper._accumulative_counts:
            self.runner.logger.warning(
                'an epoch is no multiple of accumulative_counts: going on from its end loses a part of a gradient'
            )
        return super().run()

    def run_epoch(self) -> None:
        """An epoch, or what is left of it.

        Raises:
            ValueError: the training began with another number of images per step.
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
        """A step."""
        rank = get_rank()
        seed_generators(STEP, self.seed, self._iter, rank)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(torch.default_generator.initial_seed())
        super().run_iter(idx, data_batch)

    def _steps_done(self) -> int:
        """Steps of this epoch that came before the checkpoint."""
        hub = self.runner.message_hub
        began = hub.runtime_info.get(POSITION)
        if began and began['images_per_step'] != self.images_per_step:
            raise ValueError(
                f'resume: this training took {began["images_per_step"]} images per step (processes x '
                f'train_dataloader.batch_size), got {self.images_per_step}: go on with the same number, to which its '
                'learning rates and schedules belong'
            )
        if began and began['epoch'] == self._epoch:
            return self._iter - began['iter']
        position = {'epoch': self._epoch, 'iter': self._iter, 'images_per_step': self.images_per_step}
        hub.update_info(POSITION, position)
        return 0
