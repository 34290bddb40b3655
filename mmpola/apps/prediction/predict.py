"""Predict images in batches; write a drawing and a JSON file of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmpola.apps.prediction.drawing import draw_classes
from mmpola.apps.prediction.files import ImageFile
from mmpola.apps.prediction.predictor import Predictor
from mmpola.progress import progress

SKIPPED = 3
"""Exit status of tools/predict.py and tools/analyze.py if images were skipped."""

BEST = 5
"""Number of classes that are written and drawn for a classifier."""


class Outcome(NamedTuple):
    """How many images are done, how many were skipped, and how many instances a detector found in all."""

    done: int
    skipped: int
    instances: int = 0


def predict(
    predictor: Predictor, images: list[ImageFile], out: Path, batch_size: int, threshold: float
) -> Outcome:
    """Predict all images, write the results and return how it went."""
    done = instances = 0
    with progress('predicting', len(images)) as advance:
        for batch in predictor.batches(images, batch_size, lambda: advance(1)):
            for (image, pixels, _), sample in zip(batch, predictor(batch), strict=True):
                instances += write(predictor, sample, image, pixels, out, threshold)
            done += len(batch)
            advance(len(batch))
    return Outcome(done, len(images) - done, instances)


def describe(
    predictor: Predictor, sample: Any, pixels: NDArray[Any], threshold: float
) -> dict[str, Any]:
    """Return what the JSON says about a prediction, and leave only what it says in a detector's sample.

    Args:
        predictor: of the sample.
        sample: what it returned for an image.
        pixels: of the image, [H, W, 3].
        threshold: lowest score of a detection.
    """
    classes = predictor.classes
    if 'pred_score' in sample:
        return {'classes': best_classes(sample.pred_score, classes)}
    if 'pred_instances' in sample:
        sample.pred_instances = visible_instances(
            sample.pred_instances, pixels.shape[:2], threshold
        )
        return {'instances': detections(predictor.inferencer.pred2dict(sample), classes)}
    return {'classes': segmentation(label_map(sample), classes)}


def label_map(sample: Any) -> NDArray[np.integer[Any]]:
    """Return the label of each pixel [H, W] of a segmenter's sample."""
    labels: NDArray[np.integer[Any]] = sample.pred_sem_seg.data[0].cpu().numpy()
    return labels


def write(
    predictor: Predictor,
    sample: Any,
    image: ImageFile,
    pixels: NDArray[Any],
    out: Path,
    threshold: float,
) -> int:
    """Draw the prediction of one image and write its files; the JSON comes last and marks it as complete.

    Returns:
        The number of instances that were found; 0 for other tasks than detection.
    """
    drawn, rgb = image.output(out, '.jpg'), pixels[..., ::-1].copy()
    drawn.parent.mkdir(parents=True, exist_ok=True)
    height, width = pixels.shape[:2]
    result: dict[str, Any] = {'image': str(image.path), 'width': width, 'height': height}
    described = describe(predictor, sample, pixels, threshold)
    if 'pred_sem_seg' in sample:
        path = image.output(out, '.png')
        kind = np.uint8 if len(predictor.classes) < 256 else np.uint16
        Image.fromarray(label_map(sample).astype(kind)).save(path)
        result['label_map'] = path.name
    if 'pred_score' in sample:
        draw_classes(rgb, described['classes'], drawn)
    else:
        Image.fromarray(predictor.draw(sample, rgb)).save(drawn, quality=95)
    image.output(out, '.json').write_text(json.dumps(result | described, indent=1))
    return len(described.get('instances', ()))


def visible_instances(instances: Any, size: tuple[int, int], threshold: float) -> Any:
    """Return mmdet's instances with a score of at least `threshold`, best first, their boxes clipped to the image.

    Test pipelines that pad images let boxes extend beyond them; a box that is wholly outside is
    left out.

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


def detections(found: dict[str, list[Any]], classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Describe instances in their order, given their labels, scores, bboxes and masks as mmdet's inferencer does."""
    columns = zip(found['labels'], found['scores'], found['bboxes'], strict=True)
    described = [
        {'label': n, 'class': classes[n], 'score': score, 'box': box} for n, score, box in columns
    ]
    for instance, mask in zip(described, found.get('masks', ()), strict=False):
        instance['mask'] = mask
    return described


def segmentation(
    labels: NDArray[np.integer[Any]], classes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return label, name and share of the pixels of every class in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
    return [
        {'label': n, 'class': classes[n], 'share': float(counts[n] / labels.size)} for n in present
    ]


def best_classes(scores: Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return label, name and probability of the `BEST` classes, given all probabilities [num_classes]."""
    values, labels = scores.cpu().topk(min(BEST, len(classes)))
    return [
        {'label': n, 'class': classes[n], 'score': score}
        for n, score in zip(labels.tolist(), values.tolist(), strict=True)
    ]
