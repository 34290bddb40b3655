"""Predict images in batches and write the results of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mmpola.engine.progress import progress
from mmpola.prediction.drawing import draw_classes, without_overlaps
from mmpola.prediction.files import ImageFile, readable_batches
from mmpola.prediction.predictor import Predictor
from mmpola.prediction.results import best_classes, detections, segmentation, visible_instances

SKIPPED = 3
"""Exit status of tools/predict.py and tools/analyze.py if images could not be read."""


class Outcome(NamedTuple):
    """How many images were predicted, how many could not be read, and how many instances were found in all."""

    done: int
    skipped: int
    instances: int


def predict(predictor: Predictor, images: list[ImageFile], out: Path, batch_size: int, threshold: float) -> Outcome:
    """Predict all images, write the results and return how it went."""
    done = instances = 0
    with progress('predicting', len(images)) as advance:
        for batch in readable_batches(images, batch_size, predictor.mixed, lambda: advance(1)):
            for (image, pixels), sample in zip(batch, predictor(batch), strict=True):
                instances += write(predictor, sample, image, pixels, out, threshold)
            done += len(batch)
            advance(len(batch))
    return Outcome(done, len(images) - done, instances)


def write(
    predictor: Predictor, sample: Any, image: ImageFile, pixels: NDArray[Any], out: Path, threshold: float
) -> int:
    """Draw the prediction of one image and write its files; the JSON comes last and marks it as complete.

    Returns:
        The number of instances that were found; 0 for other tasks than detection.
    """
    drawn, described = image.output(out, '.jpg'), image.output(out, '.json')
    classes, rgb = predictor.classes, pixels[..., ::-1].copy()
    height, width = pixels.shape[:2]
    result: dict[str, Any] = {'image': str(image.path), 'width': width, 'height': height}
    if 'pred_score' in sample:
        result['classes'] = best_classes(sample.pred_score, classes)
        draw_classes(rgb, result['classes'], drawn)
    elif 'pred_instances' in sample:
        found = visible_instances(sample.pred_instances, (height, width), threshold)
        result['instances'] = detections(found, classes)
        sample.pred_instances = without_overlaps(found)
        predictor.draw(sample, rgb, drawn)
    else:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        label_map = image.output(out, '.png')
        label_map.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(label_map), labels.astype(np.uint8 if len(classes) < 256 else np.uint16))
        result |= {'label_map': label_map.name, 'classes': segmentation(labels, classes)}
        predictor.draw(sample, rgb, drawn)
    described.write_text(json.dumps(result, indent=1))
    return len(result.get('instances', ()))
