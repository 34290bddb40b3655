"""One image of the page of tools/explore.py: the model's prediction, and the weights of the query at any of its points.

One forward pass captures what the weights of any query, layer and head are computed from.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from mmpola.apps.analysis.capture import LayerInputs, observe, observing
from mmpola.apps.analysis.figures import TITLES, Scene, draw_query, draw_query_entropy
from mmpola.apps.analysis.statistics import Array, positive_sequence_entropy
from mmpola.apps.analysis.weights import MAPS, attention_rows
from mmpola.apps.prediction.drawing import shown_name
from mmpola.apps.prediction.files import ImageFile
from mmpola.apps.prediction.geometry import (
    Geometry,
    Point,
    centre,
    token_at,
    token_stride,
    visible_pixels,
)
from mmpola.apps.prediction.predict import describe
from mmpola.apps.prediction.predictor import Predictor
from mmpola.layers import Grid
from mmpola.messages import UsageError, listed

SHOWN = 900
"""Longer side of the image on the page, in pixels; the browser reduces it to the width of its column."""

HIDDEN = 0.35
"""Brightness of the part of the image that the network does not see."""

Rows = Callable[[Tensor], dict[str, Tensor]]
"""A function from the indices of queries [R] to their weights [H, R, M] for each of `MAPS`."""


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
    weights: Rows
    distributions: Rows

    @property
    def largest_entropy(self) -> float:
        """The entropy of equal weights for all keys, log M."""
        return math.log(math.prod(self.key_grid))


@dataclass(frozen=True, eq=False)
class Exploration:
    """An image, the model's prediction, and the weights of every query in every layer, computed when asked for.

    Memory is proportional to the number of tokens: the factors of the weights are kept, not the
    weights.

    Attributes:
        pixels: of the image, RGB uint8 [H, W, 3].
        drawn: the same with the prediction drawn over it; a classifier's is text only.
        prediction: in words.
        geometry: of the image in the network's input.
        layers: as chosen for `explore`.
    """

    pixels: NDArray[Any]
    drawn: NDArray[Any]
    prediction: str
    geometry: Geometry
    layers: list[ExploredLayer]

    def token(self, layer: ExploredLayer, point: Point) -> tuple[int, int]:
        """Return row and column of the query in a layer that contains a pixel of the image."""
        return token_at(point, self.geometry, layer.stride, layer.grid)

    def maps(self, layer: ExploredLayer, point: Point, head: int | None) -> dict[str, Array]:
        """Return the weights of a pixel's query over the keys, [h, w] for each of `MAPS`, times the number of keys.

        Args:
            layer: one of `layers`.
            point: a pixel of the image.
            head: from 0; None for the mean of the heads.
        """
        found = {}
        for kind, rows in layer.weights(self._query(layer, point)).items():
            weights = rows[:, 0].mean(dim=0) if head is None else rows[head, 0]
            found[kind] = (
                (weights * len(weights)).unflatten(0, layer.key_grid).float().cpu().numpy()
            )
        return found

    def entropies(self, layer: ExploredLayer, point: Point) -> dict[str, Array]:
        """Return the entropy of the same weights, of each head [H] in nats for each of `MAPS`."""
        rows = layer.distributions(self._query(layer, point))
        return {
            kind: positive_sequence_entropy(x[:, 0]).float().cpu().numpy()
            for kind, x in rows.items()
        }

    def _query(self, layer: ExploredLayer, point: Point) -> Tensor:
        """Return the index [1] of a pixel's query."""
        row, column = self.token(layer, point)
        return torch.tensor([row * layer.grid[1] + column])

    def view(self, chosen: int, head: int | None, point: Point | None) -> dict[str, Any]:
        """Return what the page shows for a point of the image in a layer and a head, with the images as data URLs.

        Args:
            chosen: index of the layer.
            head: from 0; None for the mean of the heads.
            point: a pixel; None for the centre of what the network sees.

        Raises:
            UsageError: the network does not see the pixel.
        """
        height, width = self.pixels.shape[:2]
        visible = visible_pixels(self.geometry, (height, width))
        point = point or centre(self.geometry, (height, width))
        if not (visible[0] <= point[0] < visible[2] and visible[1] <= point[1] < visible[3]):
            raise UsageError(
                'The network does not see the dark part, which the test transforms crop away.'
            )
        layer = self.layers[chosen]
        entropies = [self.entropies(other, point) for other in self.layers]
        shares = [
            {kind: values / other.largest_entropy for kind, values in found.items()}
            for other, found in zip(self.layers, entropies, strict=True)
        ]
        number = len(entropies[chosen]['both'])
        heads = f'mean of {number} heads' if head is None else f'head {head + 1} of {number}'
        heads = 'one head' if number == 1 else heads
        table = []
        for kind, values in entropies[chosen].items():
            value = values.mean() if head is None else values[head]
            table.append((TITLES[kind], f'{value:.2f} ({value / layer.largest_entropy:.0%})'))
        row, column = self.token(layer, point)
        scene = Scene(self.pixels, [point], self.geometry)
        title = f'{layer.name}: weights, {heads}'
        maps = draw_query(scene, self.maps(layer, point, head), layer.key_stride, title)
        entropy = draw_query_entropy([other.name for other in self.layers], shares, chosen, head)
        return {
            'point': point,
            'size': (width, height),
            'prediction': f'Prediction: {self.prediction}',
            'query': f'Pixel {point[0]}, {point[1]} is in the query of row {row + 1}, column {column + 1} of '
            f'{layer.grid[0]} x {layer.grid[1]}. Entropy of its weights in nats, at most '
            f'{layer.largest_entropy:.2f}, {heads}:',
            'table': table,
            'image': _data_url('jpeg', self._picture(point, visible).save),
            'maps': _data_url('png', maps.savefig),
            'entropy': _data_url('png', entropy.savefig),
        }

    def _picture(self, point: Point, visible: tuple[int, int, int, int]) -> Image.Image:
        """Return the image with its prediction and the point, dark where the network does not see."""
        height, width = self.pixels.shape[:2]
        scale = SHOWN / max(height, width)
        picture = Image.fromarray(self.drawn).resize(
            (max(1, round(width * scale)), max(1, round(height * scale)))
        )
        dark = picture.point(lambda value: value * HIDDEN)
        left, top, right, bottom = (round(edge * scale) for edge in visible)
        dark.paste(picture.crop((left, top, right, bottom)), (left, top))
        x, y = ((place + 0.5) * scale for place in point)
        radius, pen = max(dark.size) / 60, max(dark.size) / 300
        draw = ImageDraw.Draw(dark)
        for colour, wider in (('black', pen), ('white', 0)):
            box = (x - radius - wider, y - radius - wider, x + radius + wider, y + radius + wider)
            draw.ellipse(box, outline=colour, width=round(pen + 2 * wider) or 1)
        return dark


def _data_url(kind: str, save: Callable[..., Any]) -> str:
    """Return an image as a URL; `save` writes it into a file."""
    file = io.BytesIO()
    save(file, format=kind)
    return f'data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}'


def explore(
    predictor: Predictor, names: Sequence[str], threshold: float, path: Path
) -> Exploration:
    """Predict an image and keep what the weights of the layers `names` are computed from, in this order.

    Detections with a score below `threshold` are left out.

    Raises:
        UsageError: the image cannot be read; the message does not name it.
    """
    batch = [predictor.read(ImageFile(path, path))]
    ((_, pixels, _),) = batch
    inputs = predictor.network_input(batch)
    keep = partial(_explored, input_size=(inputs.shape[2], inputs.shape[3]))
    if (getattr(predictor.model, 'test_cfg', None) or {}).get('mode') == 'slide':
        # The prediction is made of windows of the image; the weights are those over all of it, as
        # in `analyze`.
        (sample,) = predictor(batch)
        layers = observe(predictor.model.backbone, inputs, keep, names)
    else:
        with observing(predictor.model.backbone, keep, names) as layers:
            (sample,) = predictor(batch)
    found = describe(predictor, sample, pixels, threshold)
    rgb = pixels[..., ::-1].copy()
    drawn = rgb if 'pred_score' in sample else predictor.draw(sample, rgb)
    geometry = predictor.geometry(pixels.shape[:2])
    return Exploration(
        rgb, drawn, _in_words(found, threshold), geometry, [layers[name] for name in names]
    )


def _explored(layer: LayerInputs, input_size: tuple[int, int]) -> ExploredLayer:
    # The layers make q, k, v and the gate as one tensor: a view of q would keep all of it in
    # memory.
    inputs = replace(
        layer.attention, q=layer.attention.q.clone(memory_format=torch.contiguous_format)
    )
    weights = attention_rows(inputs, MAPS)
    distributions = (
        weights if inputs.rotary is None else attention_rows(replace(inputs, rotary=None), MAPS)
    )
    stride = token_stride(input_size, layer.grid)
    return ExploredLayer(
        layer.name,
        layer.grid,
        layer.key_grid,
        stride,
        stride * layer.sr_ratio,
        weights,
        distributions,
    )


def _in_words(found: dict[str, Any], threshold: float) -> str:
    """Describe a prediction in a line."""
    if 'instances' in found:
        every = [f'{instance["class"]} {instance["score"]:.0%}' for instance in found['instances']]
        return f'{len(every)} detections with a score of at least {threshold}' + (
            f': {listed(every)}' if every else ''
        )
    if 'share' in found['classes'][0]:
        return 'share of the pixels: ' + listed(
            f'{entry["class"]} {entry["share"]:.0%}' for entry in found['classes']
        )
    return listed(
        f'{shown_name(entry["class"])} {entry["score"]:.1%}' for entry in found['classes']
    )
