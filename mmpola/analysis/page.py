"""What the page of tools/explore.py shows: image and prediction, maps of a query's weights, and their entropy."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mmpola.analysis.exploration import Exploration, ExploredLayer
from mmpola.analysis.figures import TITLES, Scene, draw_query, draw_query_entropy
from mmpola.messages import UsageError
from mmpola.prediction.geometry import Point

SHOWN = 900
"""Longer side of the image on the page, in pixels; the browser reduces it to the width of its column."""

HIDDEN = 0.35
"""Brightness of the part of the image that the network does not see."""


class View:
    """What the page shows for a point of an image in a layer and a head.

    Args:
        found: the image.
        point: a pixel; None for the centre.
        chosen: index of the layer.
        head: from 0; None for the mean of the heads.

    Raises:
        UsageError: the network does not see the pixel.
    """

    def __init__(self, found: Exploration, point: Point | None, chosen: int, head: int | None) -> None:
        self.found, self.chosen, self.head = found, chosen, head
        self.point = point or found.centre
        left, top, right, bottom = found.visible
        if not (left <= self.point[0] < right and top <= self.point[1] < bottom):
            raise UsageError('The network does not see the dark part, which the test transforms crop away.')
        self.layer: ExploredLayer = found.layers[chosen]
        self.entropies = [found.entropies(layer, self.point) for layer in found.layers]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with the images as data URLs."""
        height, width = self.found.pixels.shape[:2]
        picture, jpeg = Image.fromarray(shown_picture(self.found, self.point)), io.BytesIO()
        picture.save(jpeg, 'jpeg')
        return {
            'point': self.point,
            'size': (width, height),
            'prediction': f'Prediction: {self.found.prediction}',
            'query': self.query(),
            'table': [(TITLES[kind], value) for kind, value in self.values().items()],
            'image': _data_url('jpeg', jpeg.getvalue()),
            'maps': _figure_url(self.maps()),
            'entropy': _figure_url(self.entropy()),
        }

    def query(self) -> str:
        """Return where the query is."""
        row, column = self.found.token(self.layer, self.point)
        return (
            f'Pixel {self.point[0]}, {self.point[1]} is in the query of row {row + 1}, column {column + 1} of '
            f'{self.layer.grid[0]} x {self.layer.grid[1]}. Entropy of its weights in nats, at most '
            f'{self.layer.largest_entropy:.2f}, {self._heads()}:'
        )

    def values(self) -> dict[str, str]:
        """Return the entropy of its weights for each of `MAPS`."""
        values = {}
        for kind, heads in self.entropies[self.chosen].items():
            value = heads.mean() if self.head is None else heads[self.head]
            values[kind] = f'{value:.2f} ({value / self.layer.largest_entropy:.0%})'
        return values

    def maps(self) -> Any:
        """Return the figure of the weights."""
        weights = self.found.maps(self.layer, self.point, self.head)
        scene = Scene(self.found.pixels, [self.point], self.found.geometry)
        return draw_query(scene, weights, self.layer.key_stride, f'{self.layer.name}: weights, {self._heads()}')

    def entropy(self) -> Any:
        """Return the figure of the entropy in all layers."""
        layers = self.found.layers
        shares = [
            {kind: heads / layer.largest_entropy for kind, heads in found.items()}
            for layer, found in zip(layers, self.entropies, strict=True)
        ]
        return draw_query_entropy([layer.name for layer in layers], shares, self.chosen, self.head)

    def _heads(self) -> str:
        number = len(self.entropies[self.chosen]['both'])
        if number == 1:
            return 'one head'
        return f'mean of {number} heads' if self.head is None else f'head {self.head + 1} of {number}'


def shown_picture(found: Exploration, point: Point) -> NDArray[np.uint8]:
    """Return the image as the page shows it: with its prediction and the point, dark where the network does not see."""
    height, width = found.pixels.shape[:2]
    scale = SHOWN / max(height, width)
    picture = Image.fromarray(found.drawn).resize((max(1, round(width * scale)), max(1, round(height * scale))))
    dark = picture.point(lambda value: value * HIDDEN)
    left, top, right, bottom = (round(edge * scale) for edge in found.visible)
    dark.paste(picture.crop((left, top, right, bottom)), (left, top))
    x, y = ((place + 0.5) * scale for place in point)
    radius, pen = max(dark.size) / 60, max(dark.size) / 300
    draw = ImageDraw.Draw(dark)
    for colour, wider in (('black', pen), ('white', 0)):
        box = (x - radius - wider, y - radius - wider, x + radius + wider, y + radius + wider)
        draw.ellipse(box, outline=colour, width=round(pen + 2 * wider) or 1)
    return np.asarray(dark)


def _figure_url(figure: Figure) -> str:
    png = io.BytesIO()
    figure.savefig(png)
    return _data_url('png', png.getvalue())


def _data_url(kind: str, data: bytes) -> str:
    return f'data:image/{kind};base64,{base64.b64encode(data).decode()}'
