"""Predict images in batches; write a drawing and a result of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from mmpola.apps.prediction.predictor import Prediction, Predictor, ReadImage
from mmpola.messages import UsageError, printable
from mmpola.progress import progress
from mmpola.read_image import ImageFile


class PredictionCounts(NamedTuple):
    """How many images were predicted and skipped, and how many instances a detector drew in all."""

    done: int
    skipped: int
    instances: int


def predict(
    predictor: Predictor, images: list[ImageFile], out: Path, batch_size: int, threshold: float
) -> PredictionCounts:
    """Predict all images, write their files and return how many there were.

    Images that cannot be read are named and skipped.

    Args:
        predictor: of the images.
        images: read in this order.
        out: folder of the results.
        batch_size: images per forward pass, at most.
        threshold: score above which a detection is drawn.
    """
    done = 0
    instances = 0
    with progress('predicting', len(images)) as advance:
        for batch in readable_batches(predictor, images, batch_size, lambda: advance(1)):
            predictions = predictor(batch, threshold)
            for image, prediction in zip(batch, predictions, strict=True):
                drawing, result = output_paths(image.file, out, predictor.result_suffix)
                write_prediction(prediction, drawing, result)
                instances += prediction.instances
            done += len(batch)
            advance(len(batch))
    return PredictionCounts(done, len(images) - done, instances)


def readable_batches(
    predictor: Predictor, images: list[ImageFile], batch_size: int, skip: Callable[[], None]
) -> Iterator[list[ReadImage]]:
    """Read images in their order and yield them in batches; print which are skipped, and why.

    Args:
        predictor: reads the images.
        images: to read.
        batch_size: largest number of images in a batch.
        skip: called after an image was skipped.
    """
    batch: list[ReadImage] = []
    for image in images:
        try:
            pixels = predictor.read(image.path)
        except UsageError as error:
            print(printable(f'skipped: {image.path}: {error}'), flush=True)
            skip()
            continue
        if batch:
            same_size = pixels.shape == batch[0].pixels.shape
            if len(batch) == batch_size or not (same_size or predictor.mixed_sizes):
                yield batch
                batch = []
        batch.append(ReadImage(image, pixels))
    if batch:
        yield batch


def output_paths(image: ImageFile, out: Path, result_suffix: str) -> tuple[Path, Path]:
    """Return the files of an image's drawing and of its result in the folder of results."""
    return image.output(out / 'vis', '.jpg'), image.output(out / 'preds', result_suffix)


def write_prediction(prediction: Prediction, drawing: Path, result: Path) -> None:
    """Write the files of one image; its result comes last and marks it as complete."""
    drawing.parent.mkdir(parents=True, exist_ok=True)
    result.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(prediction.drawing).save(drawing, quality=95)
    if isinstance(prediction.result, dict):
        result.write_text(json.dumps(prediction.result))
    else:
        Image.fromarray(prediction.result).save(result)
