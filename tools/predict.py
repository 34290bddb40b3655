"""Draws what a detector, segmenter or classifier finds in images, and writes it to files.

    python tools/predict.py CONFIG CHECKPOINT IMAGES… --out DIR [--score-thr 0.3] [--batch-size 1]
                            [--device cuda:0] [--overwrite] [--compile [BACKEND]]
                            [--cfg-options KEY=VALUE …]

IMAGES are files, folders (searched recursively) and patterns such as 'photos/**/*.jpg'. For
NAME.jpg, DIR contains

    vis/NAME.jpg     detection: boxes and masks with a score above --score-thr. Segmentation: the
                     classes over the image. Classification: the five best classes beside the image
    preds/NAME.json  detection: the lists labels, scores, bboxes and masks of mmdet's DetInferencer,
                     with all instances. Classification: {image, width, height, classes: [{label,
                     class, score}]}, the five best
    preds/NAME.png   segmentation: the label of each pixel

with the same subfolders as a given folder, or as the fixed part of a pattern. Existing results are
overwritten only with --overwrite, input images never. Exit status 0: all images are done; 2: the
arguments are invalid, nothing was done; 3: images that are unreadable or too narrow were named and
skipped, all others are done; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import sys
from pathlib import Path

from mmpola.apps.arguments import SOME_IMAGES_SKIPPED, load_image_config, score, usable_device
from mmpola.apps.prediction.predict import output_paths, predict
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.engine.config import CHECKPOINT_HELP, add_compile_argument, add_options_argument
from mmpola.engine.hooks.compile_backbone import compile_backbone
from mmpola.messages import UsageError, counted, printable, run_main
from mmpola.read_image import check_outputs, find_images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what a model finds in images, and write it to files', allow_abbrev=False
    )
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument(
        'images', nargs='+', help='image files, folders (searched recursively) or patterns'
    )
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument(
        '--score-thr', type=score, default=0.3, help='lowest score of a detection (default: 0.3)'
    )
    parser.add_argument(
        '--batch-size', type=int, default=1, help='images per forward pass (default: 1)'
    )
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )
    add_compile_argument(parser)
    add_options_argument(parser)
    args = parser.parse_args()
    if args.batch_size < 1:
        raise UsageError(f'--batch-size: expected a positive integer, got {args.batch_size}')
    args.device = usable_device(args.device)
    return args


def main() -> None:
    args = parse_args()
    cfg, on_meta = load_image_config(args)
    images = find_images(args.images, args.out)
    predictor = load_predictor(cfg, on_meta, args.checkpoint, args.device)
    outputs: list[Path] = []
    for image in images:
        outputs.extend(output_paths(image, args.out, predictor.result_suffix))
    check_outputs(images, args.out, outputs, args.overwrite)

    if args.compile is not None:
        compile_backbone(predictor.model, args.compile)
    counts = predict(predictor, images, args.out, args.batch_size, args.score_thr)

    line = f'{args.out}: {counted(counts.done, "image")} done, {counts.skipped} skipped'
    if cfg.default_scope == 'mmdet':
        line += f'; {counted(counts.instances, "detection")} with a score above {args.score_thr}'
    print(printable(line))
    if counts.skipped:
        sys.exit(SOME_IMAGES_SKIPPED)


if __name__ == '__main__':
    run_main(main)
