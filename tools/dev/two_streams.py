"""Draws docs/two_streams.png, which explains the two streams of polarity-aware attention.

    python tools/dev/two_streams.py configs/mask_rcnn_pola_swin_shapes.py \\
        work_dirs/quickstart/epoch_8.pth data/shapes/coco/val2017/000001000006.jpg \\
        --point 42 80 --head 1 --out docs/two_streams.png

Everything in it comes from one forward pass of the model of the quick start. The keys A and B are
those that the streams read most, at least four tokens from the query.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmpola.apps import analysis
from mmpola.apps.analysis.charts import BLUE, GREY, ORANGE
from mmpola.apps.image_reader import load_image_config, open_reader
from mmpola.engine.config import add_options_argument
from mmpola.engine.training_checkpoint import load_model, read_checkpoint_for
from mmpola.messages import run_main
from mmpola.ops.reference import add_key_position

STREAMS = (
    ('same', 'A', 'same-signed stream:\nreads what agrees with Q', BLUE, 'Blues'),
    ('opposite', 'B', 'opposite-signed stream:\nreads what contradicts Q', ORANGE, 'Oranges'),
)
"""Kind of weights, name of the key that it reads most, title, colour, colour map."""

FAR = 4
"""Tokens between the query and a marked key, at least; their labels would overlap."""


def draw_channels(axes: Axes, values: Any, colours: Any, title: str, colour: str) -> None:
    """Draw the channels of a query or a key as bars."""
    axes.bar(range(len(values)), values, color=colours)
    axes.axhline(0, color='black', linewidth=0.8)
    axes.set_title(title, fontsize=10, loc='left', color=colour)
    axes.set(xticks=[], yticks=[])
    axes.spines[['top', 'right', 'bottom', 'left']].set_visible(False)


def most_read(weights: Any, row: int, column: int) -> tuple[int, int]:
    """Return row and column of the largest of weights [h, w] that is `FAR` from a query."""
    rows, columns = np.indices(weights.shape)
    distance = np.maximum(abs(rows - row), abs(columns - column))
    index = np.where(distance < FAR, -np.inf, weights).argmax()
    best_row, best_column = np.unravel_index(index, weights.shape)
    return int(best_row), int(best_column)


def draw(scene: analysis.Scene, layer: analysis.LayerInputs, head: int, point: Any) -> Figure:
    """Draw a query, the key that each stream reads most, their channels, and both maps."""
    tokens = scene.tokens([point], layer.grid)
    maps = analysis.query_maps(layer, tokens)
    row, column = tokens[0]
    columns = layer.grid[1]
    q = layer.attention.q[0, row * columns + column, head]
    keys = add_key_position(layer.attention)[0, :, head]
    order = q.argsort(descending=True)
    query = q[order].numpy()
    side = scene.token_side(layer.grid)

    figure = Figure(figsize=(10.4, 3.5), layout='constrained')
    left, middle, right = figure.subfigures(1, 3, width_ratios=[2.6, 2.6, 5.2])
    image = left.subplots()
    image.imshow(scene.pixels)
    image.set_title('the image, and\na query at Q', fontsize=11)
    channels = middle.subplots(3, 1)
    draw_channels(channels[0], query, GREY, 'channels of query Q', 'black')
    panels = right.subplots(1, 2)
    places = {'Q': (point[0] + 0.5, point[1] + 0.5)}
    for number, (kind, letter, title, colour, colours) in enumerate(STREAMS):
        weights = maps[kind][0, head]  # [h, w]
        key_row, key_column = most_read(weights, row, column)
        places[letter] = scene.geometry.to_image((key_column + 0.5) * side, (key_row + 0.5) * side)
        key = keys[key_row * columns + key_column][order].numpy()
        signs = np.where(key * query > 0, BLUE, ORANGE)
        share = np.mean(signs == colour)
        relation = "Q's sign" if kind == 'same' else 'the opposite sign'
        text = f'key {letter}: {share:.0%} have {relation}'
        draw_channels(channels[number + 1], key, signs, text, colour)
        right_end, lower_end = scene.geometry.to_image(columns * side, weights.shape[0] * side)
        panels[number].imshow(weights, extent=(0, right_end, lower_end, 0), cmap=colours)
        panels[number].set_title(title, fontsize=11, color=colour)
    height, width = scene.pixels.shape[:2]
    for axes in (image, *panels):
        axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        for letter, (x, y) in places.items():
            box = {'boxstyle': 'circle', 'facecolor': 'white', 'edgecolor': GREY}
            axes.text(x, y, letter, ha='center', va='center', fontsize=9, bbox=box)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw docs/two_streams.png')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('image', type=Path)
    parser.add_argument('--layer', default='stages.1.blocks.0.attn')
    parser.add_argument('--head', type=int, default=1)
    parser.add_argument('--point', type=int, nargs=2, required=True, metavar=('X', 'Y'))
    parser.add_argument('--out', type=Path, required=True)
    add_options_argument(parser)
    args = parser.parse_args()
    cfg, model = load_image_config(args)
    model = load_model(model, read_checkpoint_for(args.checkpoint, model))
    scene = analysis.open_scene(model, open_reader(cfg), args.image)
    layers = analysis.observe(model.backbone, scene.inputs, lambda layer: layer, [args.layer])
    figure = draw(scene, layers[args.layer], args.head - 1, tuple(args.point))
    figure.savefig(args.out, dpi=150)


if __name__ == '__main__':
    run_main(main)
