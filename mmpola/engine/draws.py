"""The order of images and their random numbers, as functions of seeds and counters, never of the process.

Any number of workers or processes therefore yields the same images, with or without a restart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dataset import DefaultSampler
from torch.utils.data import get_worker_info

from mmpola.registry import DATA_SAMPLERS

IMAGE, STEP = 0, 1
"""First argument of `seed_generators`, which keeps the random numbers of images and training steps apart."""


class Draw(NamedTuple):
    """A sampler's request for an image: its index, how many times it was requested before, and the run's seed."""

    image: int
    draw: int = 0
    seed: int = 0


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU) from non-negative integers."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    random.seed(words[:2].tobytes())
    np.random.seed(words[2:4])
    torch.default_generator.manual_seed(int(words[4]) << 32 | int(words[5]))


@contextmanager
def random_numbers_of(draw: Draw) -> Iterator[None]:
    """Context in which random numbers depend on `draw` alone; afterwards the generators continue where they were.

    In a data loader's worker nothing else draws random numbers, so the states, whose copies cost more than seeding,
    are not restored.
    """
    restore = get_worker_info() is None
    if restore:
        saved = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    seed_generators(IMAGE, draw.seed, draw.draw, draw.image)
    try:
        yield
    finally:
        if restore:
            random.setstate(saved[0])
            np.random.set_state(saved[1])
            torch.default_generator.set_state(saved[2])


@DATA_SAMPLERS.register_module()
class DrawSampler(DefaultSampler):
    """MMEngine's DefaultSampler, yielding a `Draw` per image: shuffled by seed and epoch, dealt out to the processes.

    Args:
        dataset: anything with a length that takes a `Draw` as its index.
        shuffle, seed, round_up: as in DefaultSampler.
        repeats: repeated augmentation: each image appears this many times in a row, hence on different processes, with
            different random numbers; an epoch keeps its length and covers len(dataset) / repeats images.

    Attributes:
        start: samples of this process that the next epoch skips because an interrupted run has used them; then 0 again.

    Raises:
        ValueError: repeats is less than 1.
    """

    def __init__(
        self, dataset: Any, shuffle: bool = True, seed: int | None = None, round_up: bool = True, repeats: int = 1
    ) -> None:
        if repeats < 1:
            raise ValueError(f'repeats: expected an integer from 1, got {repeats}')
        super().__init__(dataset, shuffle=shuffle, seed=seed, round_up=round_up)
        self.repeats = repeats
        self.start = 0

    def __iter__(self) -> Iterator[Draw]:
        start, self.start = self.start, 0
        number = len(self.dataset)
        order = np.arange(number)
        if self.shuffle:
            order = torch.randperm(number, generator=torch.Generator().manual_seed(self.seed + self.epoch)).numpy()
        for position in range(self.rank, self.total_size, self.world_size)[start:]:
            image, repetition = divmod(position, self.repeats)
            yield Draw(int(order[image % number]), self.epoch * self.repeats + repetition, self.seed)
