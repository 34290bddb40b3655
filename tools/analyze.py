"""Draws what the linear attention of a trained model does with images, and writes it as JSON.

    python tools/analyze.py CONFIG CHECKPOINT IMAGES… --out DIR [--points X,Y …] [--layers NAME …] [--device cuda:0]
                            [--format pdf …] [--dpi 300] [--cmap NAME] [--width-inches WIDTH] [--no-title]
                            [--overwrite] [--cfg-options KEY=VALUE …]

IMAGES are files, folders (searched recursively) and patterns such as 'photos/**/*.jpg'. DIR gets
the same subfolders as a given folder, or as the fixed part of a pattern. For NAME.jpg it contains,
as PNG and as SVG or in the formats of --format,

    NAME/maps_LAYER    for each point the weights of its query over the image: same-signed and opposite-signed stream,
                       both together, and softmax attention with the same q and k
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

from mmpola.apps import analysis
from mmpola.apps.analysis.saving import DEFAULT_FORMATS, FORMATS, add_style_arguments, style_of
from mmpola.apps.prediction.config import (
    add_files_arguments,
    add_model_arguments,
    check_device,
    checked_config,
)
from mmpola.apps.prediction.files import check_outputs, find_images
from mmpola.apps.prediction.predict import SKIPPED
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.messages import counted, printable, run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what linear attention does with images, and write it as JSON',
        allow_abbrev=False,
    )
    add_model_arguments(parser)
    add_files_arguments(parser)
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
    formats = f'formats of the figures (default: {" ".join(DEFAULT_FORMATS)})'
    parser.add_argument(
        '--format', nargs='+', choices=FORMATS, default=DEFAULT_FORMATS, help=formats
    )
    add_style_arguments(parser)
    parser.add_argument(
        '--no-title',
        action='store_true',
        help='leave out the titles of figures, not of their panels',
    )
    args = parser.parse_args()
    args.style = style_of(args, title=not args.no_title)
    args.points = analysis.parse_points(args.points)
    args.device = check_device(args.device)
    return args


def main() -> None:
    args = parse_arguments()
    cfg, on_meta = checked_config(args)
    images = find_images(args.images, args.out)
    predictor = load_predictor(cfg, on_meta, args.checkpoint, args.device, named=False)
    layers = analysis.choose_layers(predictor.model.backbone, args.layers)
    check_outputs(images, args.out, analysis.output_suffixes(layers, args.format), args.overwrite)
    analysis.check_points(args.points, images, predictor)
    outcome = analysis.analyze(
        predictor, images, args.out, args.points, layers, args.format, args.style
    )
    done = f'{counted(outcome.done, "image")} done, {outcome.skipped} skipped'
    print(printable(f'{args.out}: {done}; {counted(len(layers), "layer")} each'))
    if outcome.skipped:
        sys.exit(SKIPPED)


if __name__ == '__main__':
    run_main(main)
