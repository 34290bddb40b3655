"""What a classifier returns in each of MMEngine's modes: logits, its loss, or predictions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.structures import BaseDataElement
from torch import Tensor


def loss_or_predictions(
    logits: Tensor, data_samples: list[BaseDataElement] | None, mode: str
) -> Any:
    """Return what `forward` of a classifier returns in a mode.

    Args:
        logits: [B, num_classes].
        data_samples: one per row, with `gt_label`, a class index, or `gt_score` [num_classes], its
            soft target.
        mode: 'tensor': the logits. 'loss': dict(loss=...), the cross entropy. 'predict': the data
            samples, or new ones, with `pred_score` [num_classes], which sums to 1, and
            `pred_label`, the index of its largest entry.

    Raises:
        ValueError: the mode is unknown, or data samples lack targets in mode 'loss'.
    """
    if mode == 'tensor':
        return logits
    if mode == 'loss':
        return {'loss': F.cross_entropy(logits, _targets(data_samples).to(logits.device))}
    if mode == 'predict':
        return _predictions(logits, data_samples)
    raise ValueError(f"mode: expected 'tensor', 'loss' or 'predict', got {mode!r}")


def _targets(data_samples: list[BaseDataElement] | None) -> Tensor:
    """Stack soft targets [B, num_classes] if every sample has one, else class indices [B]."""
    samples = data_samples or []
    counts = {name: sum(name in sample for sample in samples) for name in ('gt_score', 'gt_label')}
    if samples and counts['gt_score'] == len(samples):
        return torch.stack([sample.gt_score for sample in samples])
    if samples and counts['gt_label'] == len(samples):
        return torch.stack([torch.as_tensor(sample.gt_label).reshape(()) for sample in samples])
    raise ValueError(
        f'data_samples: expected gt_label or gt_score in every sample, got {counts["gt_label"]} and '
        f'{counts["gt_score"]} of {len(samples)}'
    )


def _predictions(
    logits: Tensor, data_samples: list[BaseDataElement] | None
) -> list[BaseDataElement]:
    samples = [BaseDataElement() for _ in logits] if data_samples is None else data_samples
    for sample, score in zip(samples, logits.softmax(1), strict=True):
        sample.pred_score, sample.pred_label = score, score.argmax()
    return samples
