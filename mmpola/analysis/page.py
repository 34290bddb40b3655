"""The web page of tools/explore.py: image and prediction, maps of a query's weights, and their entropy.

Imported only by `mmpola.analysis.server`, because it needs Gradio, which is optional.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mmpola.analysis.charts import draw_query_entropy
from mmpola.analysis.exploration import Exploration, ExploredLayer
from mmpola.analysis.layer import MAPS
from mmpola.analysis.maps import TITLES, Scene, draw_query
from mmpola.analysis.points import Point
from mmpola.messages import UsageError

MEAN = 'mean'
"""Choice of the mean of the heads; heads are chosen by their number, from 0."""

SHOWN = 900
"""Longer side of the image on the page, in pixels; the browser reduces it to the width of its column."""

HIDDEN = 0.35
"""Brightness of the part of the image that the network does not see."""

CSS = '#image img { cursor: crosshair }'

Explore = Callable[[Path], Exploration]


def build_page(title: str, explore: Explore, heads: dict[str, int], image: Path | None) -> gr.Blocks:
    """Build the page.

    Args:
        title: of the page.
        explore: called with the path of an image whenever something of it is shown; keeps recent results.
        heads: number of heads of each layer, by name.
        image: shown first; None for none.
    """
    names = list(heads)
    with gr.Blocks(title=title, analytics_enabled=False, fill_width=True) as page:
        path, point = gr.State(None if image is None else str(image)), gr.State(None)
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                drop = gr.File(label='Drop an image here', height=120, elem_id='drop')
                picture = gr.Image(
                    label='Prediction; click a point', interactive=False, buttons=[], format='jpeg', elem_id='image'
                )
                prediction = gr.Markdown(elem_id='prediction')
            with gr.Column(scale=3, min_width=480):
                with gr.Row():
                    layer = gr.Dropdown(names, value=names[0], label='Layer', elem_id='layer')
                    head = gr.Radio(_head_choices(heads[names[0]]), value=MEAN, label='Head', elem_id='head')
                query = gr.Markdown(elem_id='query')
                maps = gr.Plot(label='Weights', show_label=False, format='png', elem_id='maps')
                entropy = gr.Plot(label='Entropy', show_label=False, format='png', elem_id='entropy')

        def show(path: str | None, point: Point | None, layer: str, head: int | str) -> Any:
            """Return what the page shows for an image, a point, a layer and a head."""
            head = head if head in range(heads[layer]) else MEAN
            choices = gr.Radio(_head_choices(heads[layer]), value=head)
            if path is None:
                return choices, *(gr.skip() for _ in outputs[1:])
            view = View(_explored(explore, path), point, names.index(layer), head)
            return choices, view.point, view.picture(), view.prediction(), view.query(), view.maps(), view.entropy()

        def click(path: str, layer: str, head: int | str, event: gr.SelectData) -> Any:
            """Show the query of the clicked point."""
            found = _explored(explore, path)
            return show(path, _clicked(found, event.index), layer, head)

        def load(drop: str, layer: str, head: int | str) -> Any:
            """Show a dropped image."""
            return drop, *show(drop, None, layer, head)

        outputs = [head, point, picture, prediction, query, maps, entropy]
        # One at a time: the layers of the model report to one image.
        options: dict[str, Any] = {'concurrency_limit': 1, 'concurrency_id': 'model', 'api_visibility': 'private'}
        page.load(show, [path, point, layer, head], outputs, **options)
        dropped = drop.upload(load, [drop, layer, head], [path, *outputs], **options)
        dropped.then(lambda: None, None, drop, api_visibility='private')  # the next image can be dropped
        picture.select(click, [path, layer, head], outputs, **options)
        layer.input(show, [path, point, layer, head], outputs, **options)
        head.input(show, [path, point, layer, head], outputs, **options)
    return page


class View:
    """What the page shows for a point of an image in a layer and a head.

    Args:
        found: the image.
        point: a pixel; None for the centre.
        chosen: index of the layer.
        head: from 0, or `MEAN`.
    """

    def __init__(self, found: Exploration, point: Point | None, chosen: int, head: int | str) -> None:
        self.found, self.chosen = found, chosen
        self.point = point or found.centre
        self.layer: ExploredLayer = found.layers[chosen]
        self.head = head if isinstance(head, int) else None
        self.entropies = [found.entropies(layer, self.point) for layer in found.layers]

    def picture(self) -> NDArray[np.uint8]:
        """Return the image with its prediction and the point."""
        return shown_picture(self.found, self.point)

    def prediction(self) -> str:
        """Return the prediction in words."""
        return f'**Prediction:** {self.found.prediction}'

    def query(self) -> str:
        """Return where the query is, and the entropy of its weights."""
        row, column = self.found.token(self.layer, self.point)
        largest = self.layer.largest_entropy
        cells = []
        for kind in MAPS:
            heads = self.entropies[self.chosen][kind]
            value = heads.mean() if self.head is None else heads[self.head]
            cells.append(f'{value:.2f} ({value / largest:.0%})')
        return (
            f'Pixel **{self.point[0]}, {self.point[1]}** is in the query of row {row + 1}, column {column + 1} of '
            f'{self.layer.grid[0]} x {self.layer.grid[1]}. Entropy of its weights in nats, at most {largest:.2f}, '
            f'{self._heads()}:\n\n| {" | ".join(TITLES[kind] for kind in MAPS)} |\n|{"---|" * len(MAPS)}\n'
            f'| {" | ".join(cells)} |'
        )

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


def _clicked(found: Exploration, place: tuple[int, int]) -> Point:
    """Return the pixel of the image at a place on the shown picture.

    Raises:
        gr.Error: the network does not see it.
    """
    scale = max(found.pixels.shape[:2]) / SHOWN
    x, y = int((place[0] + 0.5) * scale), int((place[1] + 0.5) * scale)
    left, top, right, bottom = found.visible
    if not (left <= x < right and top <= y < bottom):
        message = 'The network does not see the dark part, which the test transforms crop away.'
        raise gr.Error(message, title='No query', print_exception=False)
    return x, y


def _explored(explore: Explore, path: str) -> Exploration:
    """Return the exploration of an image.

    Raises:
        gr.Error: it cannot be read.
    """
    try:
        return explore(Path(path))
    except UsageError as error:
        raise gr.Error(str(error), duration=None, title='Not read', print_exception=False) from None


def _head_choices(number: int) -> list[tuple[str, int | str]]:
    """Return the names and values of the choices of a head."""
    return [(MEAN, MEAN), *((str(head + 1), head) for head in range(number))]
