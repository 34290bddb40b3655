"""Draws what the linear attention of a trained model does with images, and writes it as JSON.

    python tools/analyze.py CONFIG CHECKPOINT IMAGES… --out DIR [--points X,Y …] [--layers NAME …]
                            [--device cuda:0] [--overwrite] [--skip-checks NAME …]
                            [--cfg-options KEY=VALUE …]

IMAGES are files and folders (searched recursively). DIR gets the same subfolders as a given folder.
For NAME.jpg it contains, as PNG and as PDF,

    NAME/maps_LAYER    for each point the weights of its query over the image: same-signed and
                       opposite-signed stream, both together, and linear (elu + 1), FLatten's
                       and softmax attention with the same q and k
    NAME/entropy       entropy of the weights per layer and head, next to other kinds of attention
    NAME/gates         means, correlation and principal components of the gate's two halves
    NAME/parameters    learned exponents and scales, or temperatures
    NAME/rank          effective rank of the token mixing, with and without the convolution, next
                       to other kinds of attention
    NAME/sorted        weights of the points' queries from the largest to the smallest

and NAME.json with the numbers. docs/analysis.md defines them.

Points are pixels (column, row) of the image, from 0; without --points it is the one in the centre.
Without --layers all linear attention layers of the backbone are analyzed. Images are read by the
test pipeline of the config; those that it cannot read are named and skipped, and the exit status is
1 if it can read none. Existing results are overwritten only with --overwrite.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import sys
from pathlib import Path

from mmpola.images import check_outputs, find_images
from mmpola.messages import counted, run_main
from mmpola.openmmlab.checks import add_skip_argument, image_lines, names_to_skip
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.read import (
    add_device_argument,
    add_model_arguments,
    add_options_argument,
)
from mmpola.openmmlab.predict.reader import load_image_config, open_reader
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for
from mmpola.papers import analysis


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what linear attention does with images, and write it as JSON',
        allow_abbrev=False,
    )
    add_model_arguments(parser)
    parser.add_argument('images', nargs='+', help='image files and folders (searched recursively)')
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
    add_device_argument(parser)
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )
    add_skip_argument(parser)
    add_options_argument(parser)
    args = parser.parse_args()
    args.points = analysis.parse_points(args.points)
    return args


def main() -> None:
    args = parse_args()
    cfg, model = load_image_config(args)
    names_to_skip(cfg)
    reader = open_reader(cfg)
    images = find_images(args.images, args.out, reader.suffixes)
    checkpoint = read_checkpoint_for(args.checkpoint, model)
    model = unwrapped(load_model(model, checkpoint)).to(args.device)
    layers = analysis.choose_layers(model.backbone, args.layers)
    outputs = []
    for image in images:
        outputs.append(image.output(args.out, ''))
        outputs.append(image.output(args.out, '.json'))
    check_outputs(outputs, args.overwrite, images)

    counts = analysis.analyze(model, reader, images, args.out, args.points, layers)
    for line in image_lines(cfg, reader):
        print(line)
    done = f'{counted(counts.done, "image")} done, {counts.skipped} skipped'
    print(f'{args.out}: {done}; {counted(len(layers), "layer")} each')
    if counts.done == 0:
        sys.exit(1)


if __name__ == '__main__':
    run_main(main)
