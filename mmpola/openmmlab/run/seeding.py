"""Samples and their random numbers as functions of the run's seed and of counters.

They do not depend on the process: any number of workers, with or without a restart, yields the same
samples.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, NamedTuple

import mmengine.registry
import numpy as np
import torch
from mmengine.dist import get_dist_info
from torch.utils.data import BatchSampler, Dataset, Sampler

SAMPLE = 0
STEP = 1
"""First argument of `seed_generators`: it keeps the random numbers of samples and steps apart."""


DIGESTED = 1000
"""Number of images whose names are compared when a run resumes; reading all takes seconds."""


class SampleKey(NamedTuple):
    """A request for a sample: its index in the data set, the run's seed and the sample's number.

    Samples are numbered over all steps and processes, in the order of the sampler: step, place in
    the batch, rank.
    """

    index: Any
    seed: int
    number: int


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU) from non-negative integers."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    random.seed(words[:2].tobytes())
    np.random.seed(words[2:4])
    torch.default_generator.manual_seed(int(words[4]) << 32 | int(words[5]))


@contextmanager
def unchanged_generators() -> Iterator[None]:
    """Give the generators of Python, NumPy and torch (CPU) their states back at the end."""
    python = random.getstate()
    numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seeded_loader(dataloader: Any, endless: bool) -> dict[str, Any]:
    """Rewrite the config of a data loader so that it yields batches of `SampleKey`s.

    Args:
        dataloader: as MMEngine's Runner gets it, with any data set, sampler and batch sampler.
        endless: start the sampler again when it ends.

    Raises:
        ValueError: the loader has been built already.
    """
    if not isinstance(dataloader, dict):
        raise ValueError(f'train_dataloader: expected a dict, got {type(dataloader).__name__}')
    config = dict(dataloader)
    config['batch_sampler'] = {
        'type': 'mmpola.SeededBatchSampler',
        'endless': endless,
        'batch_sampler': config.pop('batch_sampler', None),
        'drop_last': config.pop('drop_last', False),
    }
    config['dataset'] = {'type': 'mmpola.SeededDataset', 'dataset': config['dataset']}
    return config


def image_digest(dataset: Any) -> dict[str, int]:
    """Return the number of images of a data set, and a check sum of the names of their files.

    The names of `DIGESTED` images are read, evenly spread over the data set, without folders,
    which may have been moved; the sum is 0 if the data set does not name its files.
    """
    number = len(dataset)
    names = []
    try:
        for index in np.linspace(0, number - 1, min(number, DIGESTED), dtype=int).tolist():
            names.append(os.path.basename(dataset.get_data_info(index)['img_path']))
    except Exception:  # data sets of users and of sequences have neither, or others
        names = []
    return {'number': number, 'names': zlib.crc32(os.fsencode('/'.join(names)))}


class SeededDataset(Dataset[Any]):
    """A data set whose random transforms depend only on the `SampleKey`.

    Its other attributes are the attributes of the data set inside. Transforms that remember earlier
    samples, such as mmdet's CachedMosaic, also depend on the worker.

    Args:
        dataset: the data set, or its config, which is built in the default scope.
    """

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, dict):
            dataset = mmengine.registry.DATASETS.build(dataset)
        self.__dict__['inner'] = dataset  # `__setattr__` would set it on the inner data set

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: SampleKey) -> Any:
        """Return the sample of a key, after seeding the generators."""
        seed_generators(SAMPLE, key.seed, key.number)
        return self.inner[key.index]

    def __getitems__(self, keys: list[SampleKey]) -> list[Any]:
        """Return the samples of a batch; torch would otherwise find the inner data set's method."""
        return [self[key] for key in keys]

    def __getattr__(self, name: str) -> Any:
        if name == 'inner':  # asked for by copy and pickle before it is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)  # mmdet's PipelineSwitchHook sets `pipeline`


class SeededBatchSampler(Sampler[list[SampleKey]]):
    """The batches of a sampler or batch sampler as lists of `SampleKey`s, from any step on.

    A resumed run skips its earlier steps here, without reading their samples.

    Args:
        sampler: yields indices.
        batch_size: of a process.
        batch_sampler: config of one, such as mmdet's AspectRatioBatchSampler; None: torch's
            BatchSampler.
        drop_last: whether torch's batch sampler drops the last batch if it is not full.
        endless: start the sampler again when it ends, with the next epoch's seed.

    Attributes:
        seed: of the run.
    """

    def __init__(
        self,
        sampler: Sampler[Any],
        batch_size: int,
        batch_sampler: dict[str, Any] | None = None,
        drop_last: bool = False,
        endless: bool = False,
    ) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.endless = endless
        self.batch_sampler: Any = BatchSampler(sampler, batch_size, drop_last)
        if batch_sampler is not None:
            arguments = {'sampler': sampler, 'batch_size': batch_size}
            self.batch_sampler = mmengine.registry.DATA_SAMPLERS.build(
                batch_sampler, default_args=arguments
            )
        self.seed = 0
        self.step = 0
        self.skip = 0

    def start(self, step: int, skip: int) -> None:
        """Set where the next iteration begins.

        Args:
            step: number of its first batch, counted over the whole run.
            skip: number of batches to leave out before it.
        """
        self.step = step
        self.skip = skip

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        rank, processes = get_dist_info()
        remaining = islice(self._indices(), self.skip, None)
        for step, batch in enumerate(remaining, start=self.step):
            first = step * self.batch_size
            keys = []
            for place, index in enumerate(batch):
                number = (first + place) * processes + rank
                keys.append(SampleKey(index, self.seed, number))
            yield keys

    def _indices(self) -> Iterator[list[Any]]:
        """Yield the batches of indices, from the first one on."""
        if not self.endless:
            yield from self.batch_sampler
            return
        for epoch in count():
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            yield from self.batch_sampler
