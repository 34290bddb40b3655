"""Draws docs/large_scene.jpg: what one query reads in a scene of 4,096 x 4,096 pixels.

    python tools/dev/large_scene.py configs/mask_rcnn_pola_swin_shapes.py \\
        work_dirs/quickstart/epoch_5.pth --out docs/large_scene.jpg

The scene is assembled: the objects of 525 generated scenes of 192 x 160 pixels on the background
of a large one. They have the size that the model of the quick start has learnt.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from mmpola.files import write_figure
from mmpola.messages import run_main
from mmpola.openmmlab.config.read import add_options_argument
from mmpola.openmmlab.predict.reader import load_image_config, open_reader
from mmpola.openmmlab.shapes import draw_scene
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for
from mmpola.papers import analysis
from mmpola.papers.analysis.figures import BLUE, COLOUR_PERCENTILE, GREY, ORANGE

SIDE = 4096
"""Of the scene in pixels."""

BACKGROUND = 79
"""Number of a scene that has no objects at this size."""

OBJECTS_SEED = 7
OBJECTS_SIZE = (192, 160)
"""Of the scenes whose objects are taken; (width, height) in pixels."""

POINT = (2533, 1513)
"""(x, y) of the query: the middle of a red cross."""

LAYER = 'stages.1.blocks.0.attn'
HEAD = 1

DETAIL = 250
"""Pixels from the query to the edges of the lower row."""

STREAMS = (
    ('same', 'same-signed stream', BLUE, 'Blues'),
    ('opposite', 'opposite-signed stream', ORANGE, 'Oranges'),
)
"""Kind of weights, title, colour, colour map."""


def assemble_scene() -> NDArray[Any]:
    """Return the scene, RGB uint8 [SIDE, SIDE, 3]."""
    pixels = draw_scene(0, BACKGROUND, (SIDE, SIDE)).image
    width, height = OBJECTS_SIZE
    columns = SIDE // width
    rows = SIDE // height
    for number in range(rows * columns):
        row, column = divmod(number, columns)
        top = row * height
        left = column * width
        tile = pixels[top : top + height, left : left + width]
        scene = draw_scene(OBJECTS_SEED, number, OBJECTS_SIZE)
        for instance in scene.instances:
            tile[instance.mask] = scene.image[instance.mask]
    return pixels


def draw_column(panels: Any, image: Any, title: str, colour: str, **style: Any) -> None:
    """Draw an image or a map in two panels: all of it above, the query's surroundings below."""
    x, y = POINT
    whole, detail = panels
    for axes in panels:
        axes.imshow(image, extent=(0, SIDE, SIDE, 0), **style)
        axes.set(xticks=[], yticks=[])
    whole.set_title(title, fontsize=11, color=colour)
    detail.set(xlim=(x - DETAIL, x + DETAIL), ylim=(y + DETAIL, y - DETAIL))
    whole.indicate_inset_zoom(detail, edgecolor='black', alpha=1)
    box = {'boxstyle': 'circle', 'facecolor': 'white', 'edgecolor': GREY}
    detail.text(x, y, 'Q', ha='center', va='center', fontsize=9, bbox=box)


def draw(scene: analysis.Scene, layer: analysis.LayerInputs) -> Figure:
    """Draw the scene, and the weights of the query's two streams over all keys."""
    maps = analysis.query_maps(layer, scene.tokens([POINT], layer.grid))
    figure = Figure(figsize=(10.4, 7.4), layout='constrained')
    panels: Any = figure.subplots(2, 3)
    draw_column(panels[:, 0], scene.pixels, '4,096 x 4,096 pixels,\nand a query at Q', 'black')
    for column, (kind, title, colour, colours) in enumerate(STREAMS, start=1):
        weights = maps[kind][0, HEAD]
        weights = weights * weights.size
        end = np.percentile(weights, COLOUR_PERCENTILE)
        title = f'{title}:\nup to {weights.max():.1f} times the mean weight'
        draw_column(panels[:, column], weights, title, colour, cmap=colours, vmin=0, vmax=end)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw docs/large_scene.jpg')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('--out', type=Path, required=True)
    add_options_argument(parser)
    args = parser.parse_args()
    cfg, model = load_image_config(args)
    cfg.test_dataloader.dataset.pipeline[1].scale = (SIDE, SIDE)
    model = load_model(model, read_checkpoint_for(args.checkpoint, model))
    with TemporaryDirectory() as folder:
        path = Path(folder) / 'scene.png'
        Image.fromarray(assemble_scene()).save(path)
        scene = analysis.open_scene(model, open_reader(cfg), path)
    layers = analysis.observe(model.backbone, scene.inputs, lambda layer: layer, [LAYER])
    figure = draw(scene, layers[LAYER])
    write_figure(args.out, figure, dpi=150, pil_kwargs={'quality': 88})


if __name__ == '__main__':
    run_main(main)
