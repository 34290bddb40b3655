"""Training loops in which every step depends only on the run's seed and the step's number."""

from __future__ import annotations

import math
from bisect import bisect
from typing import Any

import torch
from mmengine.dist import broadcast_object_list, get_rank, get_world_size
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import BatchSampler

from mmpola.messages import UsageError, counted
from mmpola.openmmlab.processes import any_process
from mmpola.openmmlab.run.seeding import (
    STEP,
    SeededBatchSampler,
    image_digest,
    seed_generators,
    seeded_loader,
)

POSITION = 'epoch_position'
"""Key in MMEngine's message hub, which checkpoints hold: the step at which the epoch began."""

VALIDATION_DUE = 'due_validation'
"""Key in the message hub: whether the weights of a checkpoint are still to be validated.

The name begins with `due` because MMEngine logs keys that begin with `train`, `val` or `test`.
"""


def accumulated_steps(optim_wrapper: OptimWrapper | OptimWrapperDict) -> int:
    """Return after how many steps no gradients are left over: every optimizer has made a step."""
    wrappers = [optim_wrapper]
    if isinstance(optim_wrapper, OptimWrapperDict):
        wrappers = list(optim_wrapper.optim_wrappers.values())
    return math.lcm(*[wrapper._accumulative_counts for wrapper in wrappers])


class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop, which can also resume in the middle of an epoch.

    A checkpoint from the middle of an epoch resumes with exactly the remaining samples and the same
    random numbers. On a CPU, and on one GPU with deterministic algorithms, the weights are then
    equal bit for bit to the weights of an uninterrupted run; several GPUs add gradients in an order
    that may change. With `accumulative_counts`, a checkpoint between two steps of the optimizer
    lacks the gradients that were added since the first; MMEngine warns of this.

    All generators are seeded before every sample from the run's seed and the sample's number (see
    `SampleKey`), and before every step from the run's seed, the step's number and the rank. The
    random numbers of dropout, drop path and mixup therefore depend neither on earlier steps nor on
    validation, and no generator state is saved. A run that was stopped between training and
    validation validates first when it resumes.

    Args:
        runner, max_epochs, val_begin, val_interval, dynamic_intervals: as in EpochBasedTrainLoop.
        dataloader: config with any data set, sampler and batch sampler.

    Raises:
        ValueError: the loader has been built already.
        UsageError: the data set has fewer images than a batch, or `val_interval` is no number.
    """

    endless = False
    other_number = '; another number can be used from the end of an epoch'

    def __init__(
        self,
        runner: Any,
        dataloader: Any,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ) -> None:
        if not isinstance(val_interval, int) or val_interval < 1:
            raise UsageError(
                f'train_cfg.val_interval: expected a whole number above 0, got {val_interval!r}'
            )
        dataloader = seeded_loader(dataloader, self.endless)
        super().__init__(runner, dataloader, max_epochs, val_begin, val_interval, dynamic_intervals)
        self.batch_sampler: SeededBatchSampler = self.dataloader.batch_sampler
        batch_size = self.batch_sampler.batch_size
        if len(self.dataloader) == 0:
            raise UsageError(
                f'train_dataloader: expected at least one batch of {batch_size}, got '
                f'{len(self.batch_sampler.sampler)} images per process with drop_last=True'
            )
        self.images_per_step = get_world_size() * batch_size
        self.images = image_digest(self.dataloader.dataset)

    def run(self) -> torch.nn.Module:
        """Train; after resuming, with the seed of the checkpoint."""
        self._check_progress()
        self._check_position()
        self._set_seed()
        if len(self.dataloader) % accumulated_steps(self.runner.optim_wrapper):
            self.runner.logger.warning(
                'the steps of an epoch are not a multiple of accumulative_counts: resuming from '
                'the end of an epoch loses the gradients accumulated until then'
            )
        self.runner.call_hook('before_train')
        self._validate_if_due()
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._decide_current_val_interval()
            self._validate_if_due()
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        """Run an epoch, or the rest of one that was interrupted."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._steps_done()
        self.batch_sampler.start(self._iter, skip=done)
        for index, batch in enumerate(self.dataloader, start=done):
            self.run_iter(index, batch)
        self._note_validation(self._epoch + 1, self._max_epochs)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Seed the generators and run a step."""
        seed_generators(STEP, self.seed, self._iter, get_rank())
        if torch.cuda.is_available():
            torch.cuda.manual_seed(torch.default_generator.initial_seed())
        super().run_iter(idx, data_batch)

    def _set_seed(self) -> None:
        """Take rank 0's seed for steps, samples and their order.

        After resuming it is the seed of the checkpoint.
        """
        seeds = [self.runner.seed]
        broadcast_object_list(seeds)
        self.seed = seeds[0]
        self.batch_sampler.seed = self.seed
        if hasattr(self.batch_sampler.sampler, 'seed'):
            self.batch_sampler.sampler.seed = self.seed

    def _check_progress(self) -> None:
        """Refuse processes that have resumed from different steps.

        Raises:
            UsageError: in all processes.
        """
        steps = [self._iter]
        broadcast_object_list(steps)
        if any_process(self._iter != steps[0]):
            raise UsageError(
                'resume: expected all processes to continue after the same step, got '
                f'{counted(steps[0], "step")} in the first and {counted(self._iter, "step")} in '
                'this one, or another number elsewhere; the work dir must be a folder that all '
                'machines share'
            )

    def _check_position(self) -> None:
        """Compare what decides which samples are left of an epoch with what it was before resuming.

        Raises:
            UsageError: it is another in the middle of the epoch.
        """
        began = self.runner.message_hub.runtime_info.get(POSITION)
        if began is None:
            return
        within_epoch = began['epoch'] == self._epoch
        self._check_images_per_step(began['images_per_step'], within_epoch)
        self._check_images(began.get('images', self.images), within_epoch)
        if within_epoch:
            self._check_processes(began.get('processes', get_world_size()))
        self.runner.message_hub.update_info(POSITION, {**began, 'images': self.images})

    def _steps_done(self) -> int:
        """Return how many steps of this epoch were done before the checkpoint was written."""
        hub = self.runner.message_hub
        began = hub.runtime_info.get(POSITION)
        if began is not None and began['epoch'] == self._epoch:
            return self._iter - began['iter']
        position = {
            'epoch': self._epoch,
            'iter': self._iter,
            'images_per_step': self.images_per_step,
            'images': self.images,
            'processes': get_world_size(),
        }
        hub.update_info(POSITION, position)
        return 0

    def _check_images_per_step(self, before: int, within_epoch: bool) -> None:
        """Refuse, or warn of, another number of images per step than before resuming."""
        now = self.images_per_step
        if now == before:
            return
        images = 'images per step (processes x train_dataloader.batch_size)'
        if within_epoch:
            where = 'the middle of an epoch'
            if self.endless:
                where = 'training by steps'
            raise UsageError(
                f'resume: expected {before} {images} in {where}, as before, got '
                f'{now}{self.other_number}'
            )
        self.runner.logger.warning(
            f'resume: {now} {images} instead of {before}, {len(self.dataloader)} steps per epoch; '
            'the learning rate and its schedule, which counts steps, continue as in the checkpoint'
        )

    def _check_images(self, before: dict[str, int], within_epoch: bool) -> None:
        """Refuse, or warn of, other training images than before resuming.

        Training by steps has no end of an epoch, from which others can be used.
        """
        if self.images == before:
            return
        now = f'{self.images["number"]:,}'
        if self.images['number'] == before['number']:
            now = 'as many others'
        images = f'{before["number"]:,} training images'
        if self.endless:
            self.runner.logger.warning(
                f'resume: {now} instead of {images}: some are read twice in this round through '
                'the data, and some not at all'
            )
        elif within_epoch:
            raise UsageError(
                f'resume: expected the same {images} in the middle of an epoch, got {now}: some '
                'would be read twice in it, and some not at all; others can be used from the end '
                'of an epoch: --resume CHECKPOINT --overwrite'
            )
        elif self.images['number'] != before['number']:
            self.runner.logger.warning(
                f'resume: {now} instead of {images}, {len(self.dataloader)} steps per epoch; the '
                'learning rate and its schedule, which counts steps, continue as in the checkpoint'
            )

    def _check_processes(self, before: int) -> None:
        """Refuse another number of processes if each of them groups its own images into batches."""
        now = get_world_size()
        kind = type(self.batch_sampler.batch_sampler)
        if now != before and kind is not BatchSampler:
            raise UsageError(
                f'resume: expected {before} processes as before, because {kind.__name__} groups '
                f'the images of each of them, got {now}{self.other_number}'
            )

    def _note_validation(self, done: int, end: int) -> None:
        """Note, before checkpoints are written, whether validation comes next.

        Args:
            done: epochs or steps.
            end: their number in the whole run.
        """
        interval = self.dynamic_intervals[bisect(self.dynamic_milestones, done + 1) - 1]
        due = done >= self.val_begin and (done % interval == 0 or done == end)
        validates = self.runner.val_loop is not None
        self.runner.message_hub.update_info(VALIDATION_DUE, due and validates)

    def _validate_if_due(self) -> None:
        """Validate if the run was stopped between training and validation."""
        hub = self.runner.message_hub
        if hub.runtime_info.get(VALIDATION_DUE) and self.runner.val_loop is not None:
            self.runner.val_loop.run()
            hub.update_info(VALIDATION_DUE, False)


class ExactIterLoop(ExactEpochLoop):
    """MMEngine's IterBasedTrainLoop, which resumes as exactly as ExactEpochLoop, and at once.

    To resume, MMEngine's own loop reads the batches of all earlier steps again. A sampler that
    ends, such as DefaultSampler, starts again with the next epoch's order; workers are kept.

    Args:
        runner, max_iters, val_begin, val_interval, dynamic_intervals: as in IterBasedTrainLoop.
        dataloader: as in ExactEpochLoop.
    """

    endless = True
    other_number = ''

    def __init__(
        self,
        runner: Any,
        dataloader: Any,
        max_iters: int,
        val_begin: int = 1,
        val_interval: int = 1000,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(runner, dataloader, 1, val_begin, val_interval, dynamic_intervals)
        self._max_iters = int(max_iters)

    def run(self) -> torch.nn.Module:
        """Train; after resuming, with the seed of the checkpoint."""
        self._check_progress()
        self._check_position()
        self._set_seed()
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')  # MMEngine's hooks see the run as one epoch
        self._steps_done()
        self._validate_if_due()
        self.batch_sampler.start(self._iter, skip=self._iter)
        batches = iter(self.dataloader)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(self._iter, next(batches))
            self._decide_current_val_interval()
            self._validate_if_due()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Seed the generators and run a step."""
        self._note_validation(self._iter + 1, self._max_iters)
        super().run_iter(idx, data_batch)

    def _decide_current_val_interval(self) -> None:
        current = bisect(self.dynamic_milestones, self._iter + 1) - 1
        self.val_interval = self.dynamic_intervals[current]
