"""Draw a confusion matrix, and the images with the worst mistakes below a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mmpola.images import loaded_as_rgb
from mmpola.openmmlab.results.wrong_boxes import RECALLS, Boxes
from mmpola.openmmlab.screen.batch_picture import contact_sheet, font_of

TILE = (600, 450)
"""Width and height of a tile in pixels."""

GAP = 6
"""Pixels between images."""

MOST_CLASSES = 25
"""Largest number of rows of a confusion matrix that are drawn: those with the most mistakes."""

MOST_CURVES = 10
"""Largest number of classes with a curve: those of the least AP."""

LEGEND = 44
"""Height of a line above the images in pixels."""

MISSED = '#ffb000'
INVENTED = '#2f6bff'
CONFUSED = '#e6008c'
FOUND = '#2ca02c'
WRONG = '#ff0000'
BOX_LEGEND = {
    MISSED: 'missed',
    INVENTED: 'invented, twice, or in the wrong place',
    CONFUSED: 'called something else',
    FOUND: 'found',
}


def draw_confusion(
    matrix: NDArray[Any],
    names: Sequence[str],
    title: str,
    curves: NDArray[Any] | None = None,
) -> Figure:
    """Draw a confusion matrix, coloured by the shares of its rows, and precision over recall.

    Args:
        matrix: (true class, class of the network), [K, K].
        names: of its rows, [K].
        title: above the picture.
        curves: precision at `RECALLS`, [C, 101] of the first C classes; None without any.
    """
    shown = np.arange(len(names))
    if len(names) > MOST_CLASSES:
        wrong = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
        shown = np.sort(np.argsort(-wrong, kind='stable')[:MOST_CLASSES])
        title += f'; the {MOST_CLASSES} of {len(names)} rows with the most mistakes'
    is_share = matrix.max() >= 1e5  # such as pixels
    if is_share:
        title += ', in % of each row'
    side = 3.5 + 0.42 * len(shown)
    width = side if curves is None else side + max(side, 6.5)
    figure = Figure(figsize=(width, side), layout='constrained')
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)
    panels = 1 if curves is None else 2
    axes = figure.add_subplot(1, panels, 1)
    shares = (matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[np.ix_(shown, shown)]
    numbers = matrix[np.ix_(shown, shown)]
    axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(numbers), strict=True):
        text = f'{numbers[row, column]:,}'
        if is_share:
            text = f'{100 * shares[row, column]:.1f}'
        colour = 'white' if shares[row, column] > 0.5 else 'black'
        axes.text(column, row, text, ha='center', va='center', color=colour, fontsize=8)
    labels = [names[int(index)] for index in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=45, ha='right', parse_math=False)
    axes.set_yticks(range(len(shown)), labels, parse_math=False)
    axes.set(xlabel='what the network says', ylabel='what is there')
    if curves is not None:
        _draw_curves(figure.add_subplot(1, 2, 2), curves, names)
    return figure


def _draw_curves(axes: Axes, curves: NDArray[Any], names: Sequence[str]) -> None:
    values = curves.mean(1)
    known = np.flatnonzero(np.isfinite(values))
    worst = known[np.argsort(values[known], kind='stable')][:MOST_CURVES]
    for index, label in enumerate(worst):
        name = f'{names[label]} {100 * values[label]:.1f}'
        axes.plot(RECALLS, curves[label], label=name, color=colormaps['tab10'](index))
    mean = np.nanmean(curves, 0)
    axes.plot(RECALLS, mean, 'k', linewidth=3, label=f'all classes {100 * mean.mean():.1f}')
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel='recall', ylabel='precision')
    axes.grid(alpha=0.3)
    title = 'AP50'
    if len(known) > len(worst):
        title += f', the {len(worst)} worst of {len(known)} classes'
    for text in axes.legend(title=title, fontsize=8).get_texts():
        text.set_parse_math(False)


def worst_boxes(
    found: Boxes, partner: NDArray[Any], names: Sequence[str], number: int
) -> list[tuple[Image.Image, str]]:
    """Draw the images with the most mistakes of a detector.

    Args:
        found: the boxes.
        partner: what `wrong_boxes.partners` returned for them.
        names: of the classes.
        number: of images, at most.

    Returns:
        Tiles with captions, the worst first.
    """
    pair = partner >= 0
    is_missed = ~np.isin(np.arange(len(found.true_labels)), partner)
    is_confused = pair.copy()
    is_confused[pair] = found.true_labels[partner[pair]] != found.labels[pair]
    is_wrong = is_confused | (partner == -1)
    images = len(found.paths)
    mistakes = np.bincount(found.images[is_wrong], minlength=images)
    mistakes += np.bincount(found.true_images[is_missed], minlength=images)
    tiles = []
    for image in np.argsort(-mistakes, kind='stable')[:number]:
        if mistakes[image] == 0:
            break
        shown = []
        own = found.images == image
        for index in np.flatnonzero(own & pair & ~is_confused):
            shown.append((found.boxes[index], FOUND, ''))
        missed = np.flatnonzero(is_missed & (found.true_images == image))
        for index in missed:
            shown.append((found.true_boxes[index], MISSED, names[found.true_labels[index]]))
        for index in np.flatnonzero(own & is_wrong):
            text = f'{names[found.labels[index]]} {found.scores[index]:.2f}'
            colour = INVENTED
            if is_confused[index]:
                colour = CONFUSED
                text = f'{names[found.true_labels[partner[index]]]}, called {text}'
            shown.append((found.boxes[index], colour, text))
        path = found.paths[image]
        caption = f'{mistakes[image]} mistakes, {len(missed)} of them missed  {Path(path).name}'
        tiles.append((_with_boxes(path, shown), caption))
    return tiles


def _with_boxes(path: str, boxes: Sequence[tuple[NDArray[Any], str, str]]) -> Image.Image:
    """Draw boxes with their colours and texts into an image; those without a text are thinner."""
    width, height = np.max([box[2:] for box, _, _ in boxes], 0).astype(int) + 1
    picture, scale, corner = fitted(pixels_of(path, (width, height)), TILE)
    pen = ImageDraw.Draw(picture)
    for box, colour, text in boxes:
        x1, y1, x2, y2 = (box * scale + (*corner, *corner)).tolist()
        pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=3 if text else 2)
        write(pen, (x1, y1 - 17), text, colour, 14)
    return picture


def write(
    pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str, colour: str, size: int
) -> None:
    """Write a text on a ground of a colour, inside of a tile."""
    font = font_of(size)
    place = (max(0, min(place[0], TILE[0] - pen.textlength(text, font))), max(0, place[1]))
    if text:
        pen.rectangle(pen.textbbox(place, text, font), fill=colour)
        pen.text(place, text, 'black' if colour == MISSED else 'white', font)


def pixels_of(path: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Read an image as mmcv does, RGB [H, W, 3]; one that needs its own loader is grey.

    Args:
        path: of the image.
        size: (width, height) of the grey one.
    """
    pixels = cv2.imread(path, cv2.IMREAD_COLOR)  # turned by EXIF
    if pixels is None:
        return np.full((size[1], size[0], 3), 128, np.uint8)
    return loaded_as_rgb(pixels)


def fitted(
    pixels: NDArray[np.uint8], size: tuple[int, int]
) -> tuple[Image.Image, float, tuple[int, int]]:
    """Put an image onto a white tile; return the tile, the image's scale and its corner."""
    height, width = pixels.shape[:2]
    scale = min((size[0] - GAP) / width, (size[1] - GAP) / height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    corner = ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2)
    tile = Image.new('RGB', size, 'white')
    tile.paste(Image.fromarray(pixels).resize(inner), corner)
    return tile, scale, corner


def sheet(
    tiles: list[tuple[Image.Image, str]], title: str, legend: Mapping[str, str]
) -> NDArray[np.uint8]:
    """Arrange tiles with captions below a title and what the colours mean; RGB [H, W, 3].

    Args:
        tiles: of one size, at least one.
        title: a line.
        legend: colour -> its meaning, as many as fit.
    """
    images = contact_sheet(tiles)
    font = font_of(22)
    result = Image.new('RGB', (images.width, images.height + 2 * LEGEND), 'white')
    pen = ImageDraw.Draw(result)
    pen.text((8, 8), title, 'black', font)
    x = 8.0
    for colour, meaning in legend.items():
        if x + 34 + pen.textlength(meaning, font) > images.width:
            break
        pen.rectangle((x, LEGEND + 8, x + 26, LEGEND + 32), fill=colour)
        pen.text((x + 34, LEGEND + 6), meaning, 'black', font)
        x += 34 + pen.textlength(meaning, font) + 36
    result.paste(images, (0, 2 * LEGEND))
    return np.asarray(result)
