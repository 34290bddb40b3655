"""The weights of the query at any point of one image, in every layer, for tools/explore.py.

One forward pass of the backbone captures what the weights of any query, layer and head are computed
from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from mmpola.apps.analysis.attention_weights import MAP_KINDS, attention_rows
from mmpola.apps.analysis.capture import LayerInputs, observe
from mmpola.apps.analysis.charts import draw_query_entropy
from mmpola.apps.analysis.geometry import (
    Geometry,
    Point,
    centre,
    image_geometry,
    token_at,
    token_stride,
    visible_pixels,
)
from mmpola.apps.analysis.maps import KIND_TITLES, AnalyzedImage, draw_query
from mmpola.apps.analysis.statistics import Array, positive_sequence_entropy
from mmpola.apps.image_reader import ImageReader, network_input
from mmpola.layers import Grid
from mmpola.messages import UsageError

PICTURE_SIDE = 900
"""Longer side of the picture of the image, in pixels; the browser fits it into its column."""

UNSEEN_BRIGHTNESS = 0.35
"""Brightness of the part of the image that the network does not see."""

AttentionRows = Callable[[Tensor], dict[str, Tensor]]
"""A function from the indices of queries [R] to their weights [H, R, M] for each of `MAP_KINDS`."""


@dataclass(frozen=True, eq=False)
class ExploredLayer:
    """A linear attention layer after a forward pass on one image.

    Attributes:
        name: of the layer.
        grid, key_grid: (h, w) of its queries and of its keys.
        stride, key_stride: side of a query token and of a key token in pixels of the network's
            input.
        weights: of queries over all keys.
        distributions: the same before a rotation, which may make weights negative.
    """

    name: str
    grid: Grid
    key_grid: Grid
    stride: int
    key_stride: int
    weights: AttentionRows
    distributions: AttentionRows

    @property
    def largest_entropy(self) -> float:
        """The entropy of equal weights for all keys, log M."""
        return math.log(math.prod(self.key_grid))


@dataclass(frozen=True)
class View:
    """What the page shows for a point of the image in a layer and a head.

    Attributes:
        text: which query the point has.
        entropies: rows of a table, (kind of weights, entropy).
        maps: weights of the query over the image.
        entropy: of the query's weights in each layer.
    """

    text: str
    entropies: list[tuple[str, str]]
    maps: Figure
    entropy: Figure


@dataclass(frozen=True, eq=False)
class Exploration:
    """An image, and the weights of every query in every layer, computed when asked for.

    Memory is proportional to the number of tokens: the factors of the weights are kept, not the
    weights.

    Attributes:
        pixels: of the image, RGB uint8 [H, W, 3].
        geometry: of the image in the network's input.
        layers: as chosen for `explore`.
    """

    pixels: NDArray[Any]
    geometry: Geometry
    layers: list[ExploredLayer]

    @property
    def centre(self) -> Point:
        """The pixel in the centre of what the network sees."""
        return centre(self.geometry, self.pixels.shape[:2])

    def token(self, layer: ExploredLayer, point: Point) -> tuple[int, int]:
        """Return row and column of the query in a layer that contains a pixel of the image."""
        return token_at(point, self.geometry, layer.stride, layer.grid)

    def maps(self, layer: ExploredLayer, point: Point, head: int | None) -> dict[str, Array]:
        """Return the weights of a pixel's query over the keys, times the number of keys.

        Args:
            layer: one of `layers`.
            point: a pixel of the image.
            head: from 0; None for the mean of the heads.

        Returns:
            [h, w] for each of `MAP_KINDS`.
        """
        maps = {}
        for kind, rows in layer.weights(self._query(layer, point)).items():
            weights = rows[:, 0].mean(dim=0) if head is None else rows[head, 0]
            relative = weights * len(weights)
            maps[kind] = relative.unflatten(0, layer.key_grid).float().cpu().numpy()
        return maps

    def entropies(self, layer: ExploredLayer, point: Point) -> dict[str, Array]:
        """Return the entropy of the same weights in nats, [H] for each of `MAP_KINDS`."""
        entropies = {}
        for kind, rows in layer.distributions(self._query(layer, point)).items():
            entropies[kind] = positive_sequence_entropy(rows[:, 0]).float().cpu().numpy()
        return entropies

    def _query(self, layer: ExploredLayer, point: Point) -> Tensor:
        """Return the index [1] of a pixel's query."""
        row, column = self.token(layer, point)
        columns = layer.grid[1]
        return torch.tensor([row * columns + column])

    def view(self, name: str, head: int | None, point: Point) -> View:
        """Return what the page shows for a point of the image in a layer and a head.

        Args:
            name: of the layer.
            head: from 0; None for the mean of the heads.
            point: a pixel.

        Raises:
            UsageError: the network does not see the pixel.
        """
        x, y = point
        left, top, right, bottom = visible_pixels(self.geometry, self.pixels.shape[:2])
        if not (left <= x < right and top <= y < bottom):
            raise UsageError(
                'The network does not see the dark part, which the test transforms crop away.'
            )
        names = [layer.name for layer in self.layers]
        chosen = names.index(name)
        layer = self.layers[chosen]
        entropies = [self.entropies(other, point) for other in self.layers]

        head_count = len(entropies[chosen]['both'])
        if head_count == 1:
            heads = 'one head'
        elif head is None:
            heads = f'mean of {head_count} heads'
        else:
            heads = f'head {head + 1} of {head_count}'

        table = []
        for kind, values in entropies[chosen].items():
            value = values.mean() if head is None else values[head]
            table.append((KIND_TITLES[kind], f'{value:.2f} ({value / layer.largest_entropy:.0%})'))

        row, column = self.token(layer, point)
        rows, columns = layer.grid
        text = (
            f'Pixel {x}, {y} is in the query of row {row + 1}, column {column + 1} of '
            f'{rows} x {columns}. Entropy of its weights in nats, at most '
            f'{layer.largest_entropy:.2f}, {heads}:'
        )

        scene = AnalyzedImage(self.pixels, [point], self.geometry)
        title = f'{name}: weights, {heads}'
        maps = draw_query(scene, self.maps(layer, point, head), layer.key_stride, title)
        shares = []
        for other, found in zip(self.layers, entropies, strict=True):
            shares.append({kind: value / other.largest_entropy for kind, value in found.items()})
        entropy = draw_query_entropy(names, shares, chosen, head)
        return View(text, table, maps, entropy)

    def picture(self, drawing: NDArray[Any], point: Point) -> Image.Image:
        """Return a drawing of the image with the point, dark where the network does not see.

        Args:
            drawing: RGB uint8, of the size of the image.
            point: a pixel of the image.
        """
        height, width = self.pixels.shape[:2]
        scale = self._picture_scale
        picture_width = max(1, round(width * scale))
        picture_height = max(1, round(height * scale))
        bright = Image.fromarray(drawing).resize((picture_width, picture_height))
        picture = bright.point(lambda value: value * UNSEEN_BRIGHTNESS)
        left, top, right, bottom = visible_pixels(self.geometry, (height, width))
        left = round(left * scale)
        top = round(top * scale)
        right = round(right * scale)
        bottom = round(bottom * scale)
        picture.paste(bright.crop((left, top, right, bottom)), (left, top))

        x = (point[0] + 0.5) * scale
        y = (point[1] + 0.5) * scale
        radius = PICTURE_SIDE / 60
        pen = PICTURE_SIDE / 300
        draw = ImageDraw.Draw(picture)
        for colour, edge in (('black', pen), ('white', 0)):  # visible on dark and on light colours
            outer = radius + edge
            box = (x - outer, y - outer, x + outer, y + outer)
            draw.ellipse(box, outline=colour, width=round(pen + 2 * edge))
        return picture

    def pixel_at(self, place: Point) -> Point:
        """Return the pixel of the image at a place (x, y) of its picture."""
        height, width = self.pixels.shape[:2]
        x = int(place[0] / self._picture_scale)
        y = int(place[1] / self._picture_scale)
        return min(x, width - 1), min(y, height - 1)

    @property
    def _picture_scale(self) -> float:
        return PICTURE_SIDE / max(self.pixels.shape[:2])


def explore(
    model: Any, reader: ImageReader, names: Sequence[str], pixels: NDArray[Any]
) -> Exploration:
    """Run a model's backbone on an image and keep what the weights are computed from.

    Args:
        model: in eval mode; only its data_preprocessor and backbone run.
        reader: of its images.
        names: of the layers in the backbone; their order is kept.
        pixels: BGR uint8 [H, W, 3], from `reader`.

    Raises:
        UsageError: the image is too narrow for the test transforms.
    """
    inputs = network_input(model, reader, pixels)
    input_height, input_width = inputs.shape[2:]

    def keep(layer: LayerInputs) -> ExploredLayer:
        return _explored_layer(layer, token_stride((input_height, input_width), layer.grid))

    layers = observe(model.backbone, inputs, keep, names)
    geometry = image_geometry(reader, pixels.shape[:2])
    rgb = pixels[..., ::-1].copy()
    return Exploration(rgb, geometry, [layers[name] for name in names])


def _explored_layer(layer: LayerInputs, stride: int) -> ExploredLayer:
    # The layers make q, k, v and the gate as one tensor: a view of q would keep all of it in
    # memory.
    q = layer.attention.q.clone(memory_format=torch.contiguous_format)
    inputs = replace(layer.attention, q=q)
    weights = attention_rows(inputs, MAP_KINDS)
    distributions = weights
    if inputs.rotary is not None:
        distributions = attention_rows(replace(inputs, rotary=None), MAP_KINDS)
    return ExploredLayer(
        layer.name,
        layer.grid,
        layer.key_grid,
        stride,
        stride * layer.sr_ratio,
        weights,
        distributions,
    )
