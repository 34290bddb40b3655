"""What a model predicts for an image, as it is written: JSON and label maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as run_lengths
from torch import Tensor

INSTANCE_OFFSET = 1000
"""mmdet numbers the segments of a panoptic result label + 1000 * instance; stuff is instance 0."""


def instances_as_json(instances: Any) -> dict[str, Any]:
    """Return a detector's instances as mmdet's DetInferencer writes them.

    Args:
        instances: `pred_instances` of a sample.

    Returns:
        labels, scores, perhaps bboxes [x1, y1, x2, y2] in pixels and masks (COCO run lengths), with
        an entry per instance.
    """
    found = {'labels': instances.labels.tolist(), 'scores': instances.scores.tolist()}
    boxes = None
    if 'bboxes' in instances:
        boxes = instances.bboxes
        found['bboxes'] = boxes.tolist()
    if 'masks' in instances:
        masks = np.asarray(instances.masks.cpu(), np.uint8)
        encoded = [run_lengths.encode(np.asfortranarray(mask)) for mask in masks]
        if boxes is None or boxes.sum() == 0:  # detectors by masks, such as SOLO
            found['bboxes'] = []
            for x, y, width, height in map(run_lengths.toBbox, encoded):
                found['bboxes'].append([x, y, x + width, y + height])
        for mask in encoded:
            mask['counts'] = mask['counts'].decode()
        found['masks'] = encoded
    return found


def panoptic_segments(
    ids: NDArray[Any], classes: Sequence[str]
) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
    """Return a panoptic result as COCO stores it: an image of segment ids, and the segments.

    Args:
        ids: mmdet's map [H, W] of label + `INSTANCE_OFFSET` * instance.
        classes: names by label; the label after the last one is void.

    Returns:
        (RGB uint8 [H, W, 3], where id = R + 256 G + 256² B and 0 is void; `id`, `label`, `class`,
        `instance`, from 1 and 0 for stuff, and `area` in pixels of each segment).
    """
    void = ids % INSTANCE_OFFSET == len(classes)
    if (ids == 0).any():  # COCO's number of void; class 0 is stuff here
        unused = INSTANCE_OFFSET * (ids.max() // INSTANCE_OFFSET + 1)
        ids = np.where(ids == 0, unused, ids)
    segments = []
    for number, area in zip(*np.unique(ids[~void], return_counts=True), strict=True):
        instance, label = divmod(int(number), INSTANCE_OFFSET)
        segments.append(
            {
                'id': int(number),
                'label': label,
                'class': classes[label],
                'instance': instance,
                'area': int(area),
            }
        )
    ids = np.where(void, 0, ids)
    image = np.stack([ids % 256, ids // 256 % 256, ids // 256**2], axis=-1)
    return image.astype(np.uint8), segments


def label_map(sem_seg: Tensor, classes: int) -> NDArray[Any]:
    """Return the label of each pixel [H, W] in the smallest dtype for so many classes."""
    labels = sem_seg.cpu().numpy()
    return labels.reshape(labels.shape[-2:]).astype(np.min_scalar_type(classes - 1))
