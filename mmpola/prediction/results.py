"""What a prediction's JSON contains, for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as run_lengths
from torch import Tensor

BEST = 5
"""Number of classes that are written and drawn for a classifier."""


def visible_instances(instances: Any, size: tuple[int, int], threshold: float) -> Any:
    """Return mmdet's instances with a score of at least `threshold`, best first, their boxes clipped to the image.

    Test pipelines that pad images let boxes extend beyond them; a box that is wholly outside is left out.

    Args:
        instances: InstanceData with `scores` and `bboxes`, [x1, y1, x2, y2] in pixels.
        size: (height, width) of the image.
        threshold: lowest score.
    """
    kept = instances[instances.scores >= threshold]
    kept = kept[kept.scores.argsort(descending=True, stable=True)]
    boxes = kept.bboxes.clone()
    boxes[:, 0::2].clamp_(0, size[1])
    boxes[:, 1::2].clamp_(0, size[0])
    kept.bboxes = boxes
    return kept[(boxes[:, 2:] > boxes[:, :2]).all(1)]


def detections(instances: Any, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Describe mmdet's instances in their order."""
    kept = instances.cpu().numpy()
    found = [
        {'label': int(label), 'class': classes[label], 'score': float(score), 'box': [float(edge) for edge in box]}
        for label, score, box in zip(kept.labels, kept.scores, kept.bboxes, strict=True)
    ]
    if 'masks' in kept:
        for instance, mask in zip(found, kept.masks, strict=True):
            encoded = run_lengths.encode(np.asfortranarray(mask, np.uint8))
            instance['mask'] = {'size': list(encoded['size']), 'counts': encoded['counts'].decode()}
    return found


def segmentation(labels: NDArray[np.integer[Any]], classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return label, name and share of the pixels of every class in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
    return [{'label': n, 'class': classes[n], 'share': float(counts[n] / labels.size)} for n in present]


def best_classes(scores: Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return label, name and probability of the `BEST` classes, given all probabilities [num_classes]."""
    values, labels = scores.cpu().topk(min(BEST, len(classes)))
    return [
        {'label': n, 'class': classes[n], 'score': score}
        for n, score in zip(labels.tolist(), values.tolist(), strict=True)
    ]
