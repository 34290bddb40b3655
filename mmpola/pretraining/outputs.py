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
    """Turn logits into the output of a classifier's `forward`.

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
    scores = [sample.gt_score for sample in samples if 'gt_score' in sample]
    labels = [sample.gt_label for sample in samples if 'gt_label' in sample]
    if samples and len(scores) == len(samples):
        return torch.stack(scores)
    if samples and len(labels) == len(samples):
        return torch.stack([torch.as_tensor(label).reshape(()) for label in labels])
    rule = 'expected gt_label or gt_score in every sample'
    got = f'{len(labels)} and {len(scores)} of {len(samples)}'
    raise ValueError(f'data_samples: {rule}, got {got}')


def _predictions(
    logits: Tensor, data_samples: list[BaseDataElement] | None
) -> list[BaseDataElement]:
    samples = data_samples
    if samples is None:
        samples = [BaseDataElement() for _ in logits]
    for sample, score in zip(samples, logits.softmax(1), strict=True):
        sample.pred_score = score
        sample.pred_label = score.argmax()
    return samples
