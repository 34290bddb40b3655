"""Checks of a config and its model: schedule, sizes, maps that nothing reads."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mmpola.apps.data_checks.table import CONFIG, WARNING, Run, check
from mmpola.backbones.base import Backbone
from mmpola.config_contents import inner_datasets
from mmpola.engine.advice import length_advice
from mmpola.engine.validate import unwrapped
from mmpola.messages import listed


@check('schedule-length', WARNING, CONFIG)
def schedule_length(run: Run) -> Iterator[str]:
    """The schedule of the learning rate ends at another epoch or step than training."""
    if 'train' in run.splits and run.cfg.get('train_cfg'):
        yield from filter(None, [length_advice(run.cfg)])


@check('warm-up', WARNING, CONFIG)
def warm_up(run: Run) -> Iterator[str]:
    """Training ends within the warm-up of the learning rate."""
    return iter(())  # the training loop asks this, which knows the number of steps


@check('counting', WARNING, CONFIG)
def counting(run: Run) -> Iterator[str]:
    """The checkpoint hook or the schedule counts epochs where training counts steps."""
    return iter(())  # the checkpoint hook asks this, which knows the training loop


@check('image-sizes', WARNING, CONFIG)
def image_sizes(run: Run) -> Iterator[str]:
    """A classifier trains on images of another size than it is evaluated on."""
    trained = _input_size(run.cfg.get('train_dataloader') or {})
    evaluated = _input_size(run.cfg.get('val_dataloader') or {})
    if 'train' in run.splits and None not in (trained, evaluated) and trained != evaluated:
        yield (
            f'train_dataloader: images of {trained} pixels, but val_dataloader has {evaluated}; to '
            'evaluate what is trained: --cfg-options '
            f'val_dataloader.dataset.transform.input_size={trained} '
            f'test_dataloader.dataset.transform.input_size={trained}'
        )


def _input_size(dataloader: dict[str, Any]) -> Any:
    """Return the `input_size` of a classifier's data set; None for other data."""
    for dataset in inner_datasets(dataloader.get('dataset') or {}):
        transform = dataset.get('transform')
        if isinstance(transform, dict):
            return transform.get('input_size')
    return None


@check('unread-maps', WARNING, CONFIG)
def unread_maps(run: Run) -> Iterator[str]:
    """The backbone learns norms of maps that neck and heads never read: DDP stops there."""
    model = unwrapped(run.model)
    backbone = getattr(model, 'backbone', None)
    if 'train' not in run.splits or not isinstance(backbone, Backbone):
        return
    stages = list(backbone.out_indices)
    read = [
        stage for stage, is_read in zip(stages, maps_read(model, stages), strict=True) if is_read
    ]
    idle = []
    for stage in stages:
        learning: list[Any] = []
        if stage not in read and stage == stages[-1]:  # nothing reads its blocks either
            learning = list(backbone.stages[-1].parameters())
        elif stage not in read and str(stage) in backbone.norms and not backbone.chained_norms:
            learning = list(backbone.norms[str(stage)].parameters())
        if any(parameter.requires_grad for parameter in learning):
            idle.append(stage)
    if idle:
        channels = [backbone.embed_dims[stage] for stage in read]
        remedy = 'and number in_index of the heads anew'
        if isinstance(getattr(model, 'neck', None), nn.Module):
            remedy = f'model.neck.in_channels={channels} and, if it is set, start_level=0'
        yield (
            f'model.backbone.out_indices: expected {tuple(read)}, the maps that are read, got '
            f'{tuple(stages)}: norms of {listed(idle)} get no gradient, so that training stops at '
            f'its second step on several GPUs; set it, {remedy}'
        )


def maps_read(model: Any, stages: Sequence[int]) -> list[bool]:
    """Return for each map of the backbone whether the neck, or a head if there is none, reads it.

    A copy of the neck computes on tensors without values; True if it cannot.
    """
    neck = getattr(model, 'neck', None)
    if not isinstance(neck, nn.Module):
        chosen = [part.in_index for part in model.modules() if hasattr(part, 'in_index')]
        numbers = {number for index in chosen for number in np.atleast_1d(index).tolist()}
        last = len(stages)
        return [not chosen or bool({n, n - last} & numbers) for n in range(last)]
    maps = []
    for number, stage in enumerate(stages):
        size = 64 >> number
        shape = (1, model.backbone.embed_dims[stage], size, size)
        maps.append(torch.empty(shape, device='meta', requires_grad=True))
    try:
        outputs = copy.deepcopy(neck).to('meta')(tuple(maps))
        total = sum(output.sum() for output in outputs)
        gradients = torch.autograd.grad(total, maps, allow_unused=True)
    except Exception:  # whatever a neck of somebody's own needs
        return [True] * len(stages)
    return [gradient is not None for gradient in gradients]
