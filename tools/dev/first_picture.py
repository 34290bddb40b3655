"""Draws docs/cells.jpg: a detector's boxes on a photograph, and what one query of it reads.

    python tools/dev/first_picture.py benchmarks/experiments/configs/detect_pola_swin.py \\
        work_dirs/experiments/detect_pola_swin-0/best_coco_bbox_mAP_epoch_7.pth \\
        data/bccd/JPEGImages/BloodImage_00007.jpg --point 310 160 --head 2 --out docs/cells.jpg

The network comes from the first experiment of docs/results.md, the photograph one of its test
split. Both maps are of the same head and query; each is scaled from 0 to its own largest weight.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mmpola.files import write_figure
from mmpola.messages import run_main
from mmpola.openmmlab.config.read import add_options_argument
from mmpola.openmmlab.predict.reader import ImageReader, load_image_config, open_reader
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for
from mmpola.papers import analysis
from mmpola.papers.analysis.figures import BLUE, GREY, ORANGE

CLASSES = (('red cells', '#a50026'), ('white cell', '#053061'), ('platelets', '#006837'))
"""Name and colour of each class of BCCD, in the order of the config."""

STREAMS = (
    ('same', 'same-signed stream', BLUE, 'Blues'),
    ('opposite', 'opposite-signed stream', ORANGE, 'Oranges'),
)
"""Kind of weights, title, its colour, colour map."""

THRESHOLD = 0.5
FONT_SIZE = 17


def predict(model: Any, reader: ImageReader, path: Path) -> Any:
    """Return the detections of an image whose score reaches the threshold."""
    item = reader.load(path).item
    with torch.no_grad():
        found = model.test_step(reader.collate(item))[0].pred_instances
    return found[found.scores >= THRESHOLD]


def draw_photograph(axes: Axes, scene: analysis.Scene, found: Any) -> None:
    """Draw the image with its boxes, and the classes as a title in their colours."""
    axes.imshow(scene.pixels)
    for (left, top, right, bottom), label in zip(
        found.bboxes.tolist(), found.labels.tolist(), strict=True
    ):
        colour = CLASSES[label][1]
        box = Rectangle(
            (left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=2.6
        )
        axes.add_patch(box)
    for number, (name, colour) in enumerate(CLASSES):
        axes.text(
            number / 2,
            1.015,
            name,
            color=colour,
            fontsize=FONT_SIZE,
            ha=('left', 'center', 'right')[number],
            va='bottom',
            transform=axes.transAxes,
        )


def draw(
    scene: analysis.Scene, found: Any, layer: analysis.LayerInputs, head: int, point: Any
) -> Figure:
    """Draw the boxes, and beside them what a query reads in both streams."""
    maps = analysis.query_maps(layer, scene.tokens([point], layer.grid))
    side = scene.token_side(layer.grid)
    rows, columns = layer.grid
    right, lower = scene.geometry.to_image(columns * side, rows * side)
    figure = Figure(figsize=(10.4, 5.6), layout='constrained')
    panels = figure.subplot_mosaic('aab;aac')
    draw_photograph(panels['a'], scene, found)
    for name, (kind, title, colour, colours) in zip('bc', STREAMS, strict=True):
        panels[name].imshow(maps[kind][0, head], extent=(0, right, lower, 0), cmap=colours, vmin=0)
        panels[name].set_title(title, fontsize=FONT_SIZE, color=colour)
    height, width = scene.pixels.shape[:2]
    for axes in panels.values():
        axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        mark = {'boxstyle': 'circle,pad=0.2', 'facecolor': 'white', 'edgecolor': GREY}
        x, y = point
        axes.text(x, y, 'Q', ha='center', va='center', fontsize=FONT_SIZE - 4, bbox=mark)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw docs/cells.jpg')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('image', type=Path)
    parser.add_argument('--layer', default='stages.1.blocks.0.attn')
    parser.add_argument('--head', type=int, default=2)
    parser.add_argument('--point', type=int, nargs=2, required=True, metavar=('X', 'Y'))
    parser.add_argument('--out', type=Path, required=True)
    add_options_argument(parser)
    args = parser.parse_args()
    cfg, model = load_image_config(args)
    model = load_model(model, read_checkpoint_for(args.checkpoint, model))
    reader = open_reader(cfg)
    scene = analysis.open_scene(model, reader, args.image)
    found = predict(model, reader, args.image)
    layers = analysis.observe(model.backbone, scene.inputs, lambda layer: layer, [args.layer])
    figure = draw(scene, found, layers[args.layer], args.head - 1, tuple(args.point))
    write_figure(args.out, figure, dpi=100)


if __name__ == '__main__':
    run_main(main)
