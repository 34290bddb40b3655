"""How much another AP or mIoU would be with other photographs: a bootstrap of the test split."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

BOXES = 'boxes'
"""Beginning of the names of the files in which mmdet's CocoMetric keeps boxes."""

AREAS = 'areas.npy'
"""The file in which KeptIoUMetric keeps the areas of each image."""

DRAWS = 300


def standard_error(folder: Path) -> float | None:
    """Return the standard error of a test's box AP or mIoU, in points; None if it kept nothing.

    Of the photographs of the test split as many are drawn, with replacement, `DRAWS` times; the
    result is the standard deviation of their metric.

    Args:
        folder: with BOXES.gt.json and BOXES.bbox.json of mmdet's CocoMetric, or with AREAS.
    """
    if (folder / f'{BOXES}.gt.json').exists():
        values = resampled_ap(folder)
    elif (folder / AREAS).exists():
        values = resampled_miou(np.load(folder / AREAS))
    else:
        return None
    return round(float(np.std(values)), 2)


def resampled_miou(areas: np.ndarray) -> list[float]:
    """Return mIoU of `DRAWS` other test splits, from areas [images, 2, classes]."""
    images = len(areas)
    generator = np.random.default_rng(0)
    values = []
    for _ in range(DRAWS):
        agreed, either = areas[generator.integers(0, images, images)].sum(0)
        present = either > 0
        values.append(100 * float(np.mean(agreed[present] / either[present])))
    return values


def resampled_ap(folder: Path) -> list[float]:
    """Return AP of `DRAWS` other test splits, from the boxes in a folder."""
    truth = folder / f'{BOXES}.gt.json'
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        annotations = COCO(truth)
        found = annotations.loadRes(str(folder / f'{BOXES}.bbox.json'))
        evaluation = COCOeval(annotations, found, 'bbox')
        evaluation.evaluate()
        images = len(evaluation.params.imgIds)
        areas = len(evaluation.params.areaRng)
        classes = len(evaluation.params.catIds)
        matches = np.array(evaluation.evalImgs, dtype=object).reshape(classes, areas, images)
        generator = np.random.default_rng(0)
        values = []
        for _ in range(DRAWS):
            drawn = generator.integers(0, images, images)
            evaluation.evalImgs = matches[:, :, drawn].ravel().tolist()
            evaluation.accumulate()
            evaluation.summarize()
            values.append(100 * evaluation.stats[0])
    return values
