"""What segmenters and classifiers get wrong: which class is called which, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mmpola.images import rgb_image
from mmpola.openmmlab.results import mistakes_picture as pictures

PANEL = (396, 300)
"""Width and height of a label map in the picture, in pixels."""


@dataclass
class LabelledImage:
    """Numbers of pixels of an image by class, or the one class of a whole image.

    Attributes:
        path: of the image; '' if it has none.
        unit: what is counted, 'pixels' or 'images'.
        true: classes, [P].
        called: the classes of the network, [P].
        counts: of pixels for each pair of them, [P]; 1 for a whole image.
        badness: the worst images are drawn: 1 - mean IoU of the image's classes, or the
            probability of a wrong class; 0 if nothing is wrong.
        maps: true and found label maps [2, h, w], made smaller; None for a whole image, and where
            others are worse.
    """

    path: str
    unit: str
    true: NDArray[Any]
    called: NDArray[Any]
    counts: NDArray[Any]
    badness: float
    maps: NDArray[Any] | None = None


def labels_of(sample: Any, classes: int, ignored: int) -> LabelledImage | None:
    """Return what a data sample of mmseg or of a classifier says; None of others.

    Args:
        sample: with `pred_sem_seg` and `gt_sem_seg`, or with `pred_score` and `gt_label`.
        classes: their number.
        ignored: label of the pixels that are not counted.
    """
    path = str(sample.get('img_path', ''))
    if 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
        found = sample.pred_sem_seg.data.squeeze(0).long()
        true = sample.gt_sem_seg.data.squeeze(0).to(found)
        counted = (true != ignored) & (true < classes)
        pairs = true.where(counted, classes) * classes + found  # faster than leaving pixels out
        counts = torch.bincount(pairs.ravel(), minlength=classes**2)[: classes**2].cpu().numpy()
        (seen,) = np.nonzero(counts)
        step = math.ceil(max(true.shape[1] / PANEL[0], true.shape[0] / PANEL[1]))
        small = torch.stack([true.where(counted, -1), found])[:, ::step, ::step]
        maps = small.to(torch.int16).cpu().numpy()
        pair = (seen // classes, seen % classes)
        one = LabelledImage(path, 'pixels', *pair, counts[seen], 0.0, maps)
        one.badness = 1 - float(np.nanmean(ious(matrix_of([one], classes)))) if len(seen) else 0
        return one
    label = torch.as_tensor(sample.get('gt_label', ()))
    if 'pred_score' in sample and label.numel() == 1:
        score, called = sample.pred_score.cpu().max(0)
        true = int(label)
        badness = float(score) if int(called) != true else 0
        pair = (np.array([true]), np.array([int(called)]))
        return LabelledImage(path, 'images', *pair, np.array([1]), badness)
    return None


def drop_maps(images: Sequence[Any], kept: int) -> None:
    """Drop the label maps of all images but the worst ones, so that memory stays small."""
    if getattr(images[-1], 'maps', None) is None:
        return
    held = [one for one in images if isinstance(one, LabelledImage) and one.maps is not None]
    for one in sorted(held, key=lambda one: -one.badness)[kept:]:
        one.maps = None


def matrix_of(images: Sequence[LabelledImage], classes: int) -> NDArray[Any]:
    """Count (true class, class of the network), int64 [classes, classes]."""
    matrix = np.zeros((classes, classes), dtype=np.int64)
    for one in images:
        np.add.at(matrix, (one.true, one.called), one.counts)
    return matrix


def ious(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return the IoU of each class, [classes]; NaN of those that neither is there nor is said."""
    union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    return np.where(union > 0, matrix.diagonal() / np.maximum(union, 1), np.nan)


def cost_line(matrix: NDArray[Any], classes: Sequence[str], unit: str) -> str:
    """Say which share of pixels or images is wrong, and which classes are most often confused."""
    wrong = matrix * ~np.eye(len(classes), dtype=bool)
    total = int(wrong.sum())
    texts = []
    for place in np.argsort(-wrong.ravel(), kind='stable')[:3]:
        true, called = divmod(int(place), len(classes))
        if wrong[true, called]:
            share = 100 * wrong[true, called] / total
            texts.append(f'{classes[true]} called {classes[called]} {share:.0f} %')
    line = f'{100 * total / max(int(matrix.sum()), 1):.1f} % of the {unit} are wrong'
    return f'{line}; of these {", ".join(texts)}' if texts else line


def worst_labels(
    images: Sequence[LabelledImage], classes: Sequence[str], palette: Any, number: int
) -> tuple[list[tuple[Image.Image, str]], dict[str, str]]:
    """Draw the images of the least IoU, or of the most confident wrong classes.

    Args:
        images: of an evaluation.
        classes: their names.
        palette: an RGB triple for each class.
        number: of images, at most.

    Returns:
        Tiles with captions, the worst first, and a legend: colour -> meaning.
    """
    worst = sorted(images, key=lambda one: -one.badness)[:number]
    worst = [one for one in worst if one.badness > 0 and one.path]
    if images[0].unit == 'images':
        legend = {pictures.CONFUSED: 'what the network says', pictures.FOUND: 'what it is'}
        return [_class_tile(one, classes) for one in worst], legend
    colours = np.array(palette, np.uint8)
    tiles = []
    seen: set[int] = set()
    for one in worst:
        assert one.maps is not None  # `drop_maps` keeps those of the worst
        seen.update(np.unique(one.maps).tolist())
        caption = f'mean IoU {100 * (1 - one.badness):.1f}: labels, prediction, wrong pixels'
        tiles.append((_map_tile(one.path, one.maps, colours), f'{caption}  {Path(one.path).name}'))
    legend = {pictures.WRONG: 'wrong'}
    for label in sorted(seen - {-1}):
        legend[f'#{colours[label].tobytes().hex()}'] = classes[label]
    return tiles, legend


def _map_tile(path: str, maps: NDArray[Any], colours: NDArray[Any]) -> Image.Image:
    """Draw true classes, found classes and wrong pixels over an image, side by side."""
    size = maps.shape[:0:-1]
    pixels = np.asarray(Image.fromarray(pictures.pixels_of(path, size)).resize(size))
    true, found = maps
    is_wrong = (true != found) & (true >= 0)
    grey = pixels.mean(2, keepdims=True).repeat(3, 2) / 2
    panels = [pixels * 0.4 + colours[found] * 0.6]
    panels.insert(0, np.where((true >= 0)[..., None], pixels * 0.4 + colours[true] * 0.6, pixels))
    panels.append(np.where(is_wrong[..., None], (255, 0, 0), grey))
    tile = Image.new('RGB', (3 * PANEL[0], PANEL[1]), 'white')
    for index, panel in enumerate(panels):
        picture, *_ = pictures.fitted(panel.astype(np.uint8), PANEL)
        tile.paste(picture, (index * PANEL[0], 0))
    return tile


def _class_tile(one: LabelledImage, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """Draw a whole image of a wrong class; its caption is the name of the file and its folder."""
    pixels = np.asarray(rgb_image(Path(one.path).read_bytes()))  # as classifiers read it
    picture, *_ = pictures.fitted(pixels, pictures.TILE)
    pen = ImageDraw.Draw(picture)
    said = f'{classes[int(one.called[0])]} {one.badness:.2f}'
    pictures.write(pen, (8, 8), said, pictures.CONFUSED, 20)
    pictures.write(pen, (8, 38), classes[int(one.true[0])], pictures.FOUND, 20)
    return picture, '/'.join(Path(one.path).parts[-2:])
