"""Compare the batch size of training with the number of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mmengine.config import Config

PROCESSES = {'pytorch': 'WORLD_SIZE', 'slurm': 'SLURM_NTASKS', 'mpi': 'OMPI_COMM_WORLD_SIZE'}
"""Launcher -> environment variable with the number of processes."""


def batch_problems(cfg: Config, images_in: Callable[[dict[str, Any]], int | None]) -> list[str]:
    """Return a problem if a training batch has more images than a process gets in an epoch.

    Args:
        cfg: its `train_dataloader` and `launcher` are read. An InfiniteSampler has no epochs and fits any batch.
        images_in: the number of images of a data set that is no wrapper, None if it is unknown.
    """
    loader = cfg.train_dataloader
    batch, sampler = loader.get('batch_size'), str((loader.get('sampler') or {}).get('type'))
    images = _length(loader.dataset, images_in)
    if batch is None or images is None or 'Infinite' in sampler:
        return []
    processes = int(os.environ.get(PROCESSES.get(cfg.get('launcher', 'none'), ''), '1'))
    share = -(-images // processes)
    if batch <= share:
        return []
    split = f', divided among {processes} processes' if processes > 1 else ''
    return [f'train_dataloader.batch_size: expected at most {share}, for {images} images{split}, got {batch}']


def _length(dataset: dict[str, Any], images_in: Callable[[dict[str, Any]], int | None]) -> int | None:
    """Return the number of samples of a data set or wrapper, None if it is unknown."""
    if 'datasets' in dataset:
        lengths = [_length(inner, images_in) for inner in dataset['datasets']]
        return None if None in lengths else sum(length or 0 for length in lengths)
    if 'oversample_thr' in dataset:  # ClassBalancedDataset repeats images by the frequency of their classes
        return None
    length = _length(dataset['dataset'], images_in) if 'dataset' in dataset else images_in(dataset)
    indices = dataset.get('indices')
    if length is None:
        return None
    if indices is not None:
        length = min(length, indices if isinstance(indices, int) else len(indices))
    return length * dataset.get('times', 1)
