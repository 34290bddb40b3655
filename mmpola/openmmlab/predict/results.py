"""What a model predicts for an image, as it is written: JSON, label maps and a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as run_lengths
from timm.data import ImageNetInfo
from torch import Tensor

INSTANCE_OFFSET = 1000
"""mmdet numbers the segments of a panoptic result label + 1000 * instance; stuff is instance 0."""

SHOWN_CLASSES = 3
"""Number of classes that the summary of a segmentation names."""

NOTHING = 'nothing'
"""What is found in an image without an instance."""

SAME_PLURAL = ('broccoli', 'scissors', 'sheep', 'skis')
IRREGULAR = {'knife': 'knives', 'mouse': 'mice'}
"""Plurals of COCO's classes that have none of their own, or a special one."""


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


def numbers_note(metainfo: Mapping[str, Any]) -> str | None:
    """Say that annotation files number the classes otherwise than `label_map`; None if not.

    Args:
        metainfo: of the data set. mmseg's have `reduce_zero_label`, and `label_map` if they read
            only some of the classes in the files, or in another order.
    """
    numbers = None
    if metainfo.get('reduce_zero_label'):
        numbers = 'from 1 (reduce_zero_label)'
    if metainfo.get('label_map'):
        numbers = 'of all classes of the data set (metainfo.classes are others)'
    if numbers is None:
        return None
    return f'class numbers in preds/*.png: from 0; in the annotation files: {numbers}'


def counts_by_class(labels: Tensor, classes: Sequence[str]) -> str:
    """Return how many instances of each class there are: '2 persons, 1 RBC'; without one, NOTHING.

    Args:
        labels: int [instances].
        classes: names by label.
    """
    counts = labels.bincount(minlength=len(classes))[: len(classes)].tolist()
    found = []
    for name, count in zip(classes, counts, strict=True):
        if count:
            found.append(f'{count} {name if count == 1 else plural(name)}')
    return ', '.join(found) or NOTHING


def plural(name: str) -> str:
    """Return the plural of an English word in small letters; any other name as it is."""
    if not name.islower() or name in SAME_PLURAL:
        return name
    if name in IRREGULAR:
        return IRREGULAR[name]
    if name.endswith(('s', 'x', 'ch', 'sh')):
        return f'{name}es'
    return f'{name}s'


def areas_by_class(labels: Tensor, classes: Sequence[str]) -> str:
    """Return the largest classes with their shares of the pixels: 'road 52%, sky 31%'.

    Args:
        labels: int, of any shape; those beyond the classes are void.
        classes: names by label.
    """
    counts = labels.flatten().bincount(minlength=len(classes))[: len(classes)]
    shares = counts / labels.numel()
    values, indices = shares.topk(min(SHOWN_CLASSES, len(classes)))
    found = []
    for share, index in zip(values.tolist(), indices.tolist(), strict=True):
        if share > 0:
            found.append(f'{classes[index]} {share:.0%}')
    return ', '.join(found) or 'nothing'


def name_in_words(name: str) -> str:
    """Return a class name in words: 'English springer' for ImageNet's n02102040."""
    if re.fullmatch(r'n\d{8}', name):
        return _imagenet_names().get(name, name)
    return name


@cache
def _imagenet_names() -> dict[str, str]:
    """Return the first description of each class of ImageNet-1k by its WordNet number."""
    imagenet = ImageNetInfo('imagenet-1k')
    names = {}
    for number in imagenet.label_names():
        names[number] = imagenet.label_name_to_description(number).split(',')[0]
    return names
