"""How much AP would be another one with other photographs: a bootstrap of the test split."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

BOXES = 'boxes'
"""Beginning of the names of the files in which mmdet's CocoMetric keeps boxes."""

DRAWS = 300


def standard_error(folder: Path) -> float | None:
    """Return the standard error of a test's box AP, in points; None if it has kept no boxes.

    Of the photographs of the test split as many are drawn, with replacement, `DRAWS` times; the
    result is the standard deviation of their AP.

    Args:
        folder: with BOXES.gt.json and BOXES.bbox.json of mmdet's CocoMetric.
    """
    truth = folder / f'{BOXES}.gt.json'
    if not truth.exists():
        return None
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
    return round(float(np.std(values)), 2)
