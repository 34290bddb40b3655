"""Top-k accuracy over all images of a data set; each counts once for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric

from mmpola.messages import info


class Accuracy(BaseMetric):
    """Percentage of images whose class is among the k highest scores: `accuracy/top1`, `…/top5`.

    Images with a NaN score count as wrong; if there are any, `accuracy/nan_scores` is their number.

    Args:
        topk: the numbers k of highest scores.
        collect_device: 'gpu' collects through the process group, on any device; 'cpu' through
            files, which needs a folder that all machines share.
        prefix: prefix of the metrics' names.

    Raises:
        ValueError: a k is less than 1 or more than the number of classes.
    """

    default_prefix = 'accuracy'

    def __init__(
        self, topk: Sequence[int] = (1, 5), collect_device: str = 'gpu', prefix: str | None = None
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        if not topk or min(topk) < 1:
            raise ValueError(f'topk: expected positive integers, got {topk}')
        self.topk = tuple(topk)

    @property
    def dataset_meta(self) -> dict[str, Any] | None:
        """The `metainfo` of the data set."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, meta: dict[str, Any]) -> None:
        if 'classes' in meta:
            self._check_topk(len(meta['classes']))
        self._dataset_meta = meta

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Store the rank of each image's class among the highest scores, infinity for NaN scores.

        Args:
            data_batch: unused.
            data_samples: each with `pred_score` [num_classes] and `gt_label`.
        """
        scores = torch.stack([sample['pred_score'] for sample in data_samples])
        self._check_topk(scores.shape[1])
        labels = [int(sample['gt_label']) for sample in data_samples]
        targets = torch.tensor(labels, device=scores.device)
        most = max(self.topk)
        hits = scores.topk(most, dim=1).indices == targets[:, None]
        place_of_hit = hits.int().argmax(1)
        ranks = torch.where(hits.any(1), place_of_hit, most).float()
        ranks = ranks.masked_fill(scores.isnan().any(1), math.inf)
        self.results += ranks.tolist()

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        """Return the accuracies in percent."""
        ranks = torch.tensor(results)
        metrics = {}
        for k in self.topk:
            is_right = ranks < k
            metrics[f'top{k}'] = 100 * is_right.double().mean().item()
        nan_scores = int(ranks.isinf().sum())
        if nan_scores > 0:
            info(f'{nan_scores} of {len(results)} images have NaN scores and count as wrong')
            metrics['nan_scores'] = nan_scores
        return metrics

    def _check_topk(self, num_classes: int) -> None:
        if max(self.topk) > num_classes:
            rule = f'expected at most the number of classes, {num_classes}'
            raise ValueError(f'topk: {rule}, got {max(self.topk)}')
