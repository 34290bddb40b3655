"""What a data set knows about its samples without loading them: labels, boxes, masks and files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from mmpola.apps.data_checks.report import DatasetReport, add_line
from mmpola.apps.data_checks.samples import files_of, labels_of, steps_of
from mmpola.messages import listed

ROUNDING = 1
"""Pixels by which a box may leave its image."""

MANY = 0.1
"""Something is wrong with all boxes if more than this share of them leaves its image."""

FARTHEST = 10
"""Coordinates of polygons may be this many times the longer side of their image.

pycocotools stores an outline in steps of a fifth of a pixel: 1e9 would take all memory.
"""


def check_infos(dataset: Any, report: DatasetReport) -> None:
    """Count labels, and check the files, boxes and masks that `get_data_info` names.

    Args:
        dataset: of any type with that method.
        report: filled in; images and label maps are only looked for, not opened.
    """
    with_mask = any(getattr(step, 'with_mask', False) for step in steps_of(dataset))
    is_local = getattr(dataset, 'backend_args', None) is None and hasattr(dataset, 'data_prefix')
    is_trained = 'train' in report.splits
    boxes = leaving = 0
    wrong_boxes = []
    empty_boxes = []
    wrong_masks = []
    lacking = []
    files: list[str] = []
    for index in range(report.images):
        info = dataset.get_data_info(index)
        name = info.get('img_path')
        if is_local:
            files += files_of(info)
        report.add(labels_of(info))
        report.image_ids.add(info.get('img_id'))
        height = info.get('height') or math.inf
        width = info.get('width') or math.inf
        for instance in info.get('instances', ()):
            box = instance.get('bbox', ())
            if not math.isfinite(sum(box)):
                wrong_boxes.append(f'{name} ({listed(box)})')
            elif len(box) == 4:
                boxes += 1
                left, top, right, bottom = box
                beyond = max(-left, -top, right - width, bottom - height)
                leaving += beyond > ROUNDING
                is_empty = right <= left or bottom <= top
                if is_trained and is_empty and not instance.get('ignore_flag'):
                    empty_boxes.append(f'{name} ({listed(box)})')
            is_panoptic = 'segments_info' in info  # its masks are in another file
            if with_mask and not is_panoptic and not instance.get('ignore_flag'):
                if len(instance.get('mask') or ()) == 0:
                    lacking.append(name)
                elif not has_near_polygons(instance['mask'], max(width, height)):
                    wrong_masks.append(name)
    place = report.place
    add_line(
        report.problems, f'{place}: images or label maps that do not exist', absent_files(files)
    )
    add_line(report.problems, f'{place}: boxes that are not finite numbers', wrong_boxes)
    add_line(
        report.warnings,
        f'{place}: boxes without width or height, which can make the loss NaN; correct them, or '
        'leave them out: filter_cfg=dict(bbox_min_size=1) in the data set',
        empty_boxes,
    )
    add_line(
        report.problems,
        f'{place}: images with an object without a mask, but masks are loaded (with_mask=True); '
        'annotate them, or train a detector of boxes: with_mask=False, a model without mask_head, '
        "an evaluator with metric='bbox'",
        list(dict.fromkeys(lacking)),
    )
    add_line(
        report.problems,
        f'{place}: images with an outline whose coordinates are not finite, or farther away than '
        f'{FARTHEST} times the longer side of the image',
        list(dict.fromkeys(wrong_masks)),
    )
    if leaving > MANY * boxes:
        report.warnings.append(
            f'{place}: {leaving} of {boxes} boxes leave their image: are they x1, y1, x2, y2? '
            "COCO's are x, y, width, height"
        )


def absent_files(paths: Sequence[str]) -> list[str]:
    """Return the files that do not exist.

    Each folder is listed once: to look up every file takes minutes on a network's disk.
    """
    names: dict[str, set[str]] = {}
    absent = []
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in names:
            names[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in names[folder]:
            absent.append(path)
    return absent


def has_near_polygons(mask: Any, longer_side: float) -> bool:
    """Whether the coordinates of a mask's polygons are not far from the image; run lengths are."""
    if not isinstance(mask, list):
        return True
    limit = FARTHEST * longer_side
    for polygon in mask:
        if isinstance(polygon, list) and polygon:
            is_finite = math.isfinite(sum(polygon))
            if not is_finite or max(polygon) > limit or min(polygon) < -limit:
                return False
    return True
