"""Draws what the linear attention of a trained model does with images, and writes it as JSON.

    python tools/analyze.py CONFIG CHECKPOINT IMAGES… --out DIR [--points X,Y …] [--layers NAME …]
                            [--format pdf …] [--dpi 300] [--cmap NAME] [--width-inches WIDTH]
                            [--no-title] [--device cuda:0] [--overwrite]
                            [--cfg-options KEY=VALUE …]

IMAGES are files, folders (searched recursively) and patterns such as 'photos/**/*.jpg'. DIR gets
the same subfolders as a given folder, or as the fixed part of a pattern. For NAME.jpg it contains,
as PNG and as SVG or in the formats of --format,

    NAME/maps_LAYER    for each point the weights of its query over the image: same-signed and
                       opposite-signed stream, both together, and softmax attention with the same
                       q and k
    NAME/entropy       entropy of the weights per layer and head, next to other kinds of attention
    NAME/parameters    learned exponents and scales, or temperatures, per layer
    NAME/gates         means, correlation and principal components of the gate's two halves
    NAME/rank          effective rank of the token mixing, with and without the convolution

and NAME.json with the numbers. docs/analysis.md defines them.

Points are pixels (column, row) of the image, from 0; without --points it is the one in the centre.
Without --layers all linear attention layers of the backbone are analyzed. Existing results are
overwritten only with --overwrite, input images never. Exit status 0: all images are done; 2: the
arguments are invalid, nothing was done; 3: images that are unreadable or too narrow were named and
skipped, all others are done; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import sys
from pathlib import Path

from mmpola.apps import analysis
from mmpola.apps.analysis.saving import DEFAULT_FORMATS, FORMATS, add_style_arguments, style_of
from mmpola.apps.arguments import SOME_IMAGES_SKIPPED, load_image_config, usable_device
from mmpola.apps.image_reader import open_reader
from mmpola.engine.config import CHECKPOINT_HELP, add_options_argument
from mmpola.engine.training_checkpoint import load_model, read_fitting
from mmpola.messages import counted, printable, run_main
from mmpola.read_image import check_outputs, find_images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what linear attention does with images, and write it as JSON',
        allow_abbrev=False,
    )
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument(
        'images', nargs='+', help='image files, folders (searched recursively) or patterns'
    )
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument(
        '--points',
        nargs='+',
        default=[],
        metavar='X,Y',
        help='pixels whose queries are drawn (default: the centre)',
    )
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='NAME',
        help='attention layers of the backbone (default: all)',
    )
    parser.add_argument(
        '--format',
        nargs='+',
        choices=FORMATS,
        default=DEFAULT_FORMATS,
        help=f'formats of the figures (default: {" ".join(DEFAULT_FORMATS)})',
    )
    add_style_arguments(parser)
    parser.add_argument(
        '--no-title',
        action='store_true',
        help='leave out the titles of figures, not of their panels',
    )
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )
    add_options_argument(parser)
    args = parser.parse_args()
    args.style = style_of(args, title=not args.no_title)
    args.points = analysis.parse_points(args.points)
    args.device = usable_device(args.device)
    return args


def main() -> None:
    args = parse_args()
    cfg, on_meta = load_image_config(args)
    images = find_images(args.images, args.out)
    checkpoint = read_fitting(args.checkpoint, cfg, on_meta)
    model = load_model(cfg, checkpoint).to(args.device)
    reader = open_reader(cfg)
    layers = analysis.choose_layers(model.backbone, args.layers)
    outputs = []
    for image in images:
        outputs.extend(analysis.figure_paths(image, args.out, layers, args.format))
    check_outputs(images, args.out, outputs, args.overwrite)
    analysis.check_points(args.points, images, reader)

    counts = analysis.analyze(
        model, reader, images, args.out, args.points, layers, args.format, args.style
    )
    done = f'{counted(counts.done, "image")} done, {counts.skipped} skipped'
    print(printable(f'{args.out}: {done}; {counted(len(layers), "layer")} each'))
    if counts.skipped:
        sys.exit(SOME_IMAGES_SKIPPED)


if __name__ == '__main__':
    run_main(main)
