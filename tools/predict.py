"""Draws what a detector, segmenter or classifier finds in images, and writes it as JSON.

    python tools/predict.py CONFIG CHECKPOINT IMAGES… --out DIR [--score-thr 0.3] [--batch-size 1] [--device cuda:0]
                            [--overwrite] [--compile [BACKEND]] [--cfg-options KEY=VALUE …]

IMAGES are files, folders (searched recursively) and patterns such as 'photos/**/*.jpg'. DIR gets
the same subfolders as a given folder, or as the fixed part of a pattern. For NAME.jpg it contains

    NAME.jpg     detection: boxes and masks above --score-thr, drawn by mmdet. Segmentation: drawn over the image by
                 mmseg. Classification: the five best classes with their probabilities, beside the image
    NAME.json    detection: {image, width, height, instances: [{label, class, score, box, mask}]}, all above
                 --score-thr, with box = [x1, y1, x2, y2] in pixels, mask = COCO's run lengths {size, counts}
                 segmentation: {image, width, height, label_map, classes: [{label, class, share}]}, sorted by their
                 share of the pixels
                 classification: {image, width, height, classes: [{label, class, score}]}, the five best
    NAME.png     segmentation: the label of every pixel, as numbered in the JSON

Existing results are overwritten only with --overwrite, input images never. Exit status 0: all
images are done; 2: the arguments are invalid, nothing was done; 3: images that are unreadable or
too narrow were named and skipped, all others are done; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import sys

from mmpola.apps.prediction.config import (
    add_files_arguments,
    add_model_arguments,
    add_score_argument,
    check_device,
    checked_config,
    output_suffixes,
)
from mmpola.apps.prediction.files import check_outputs, find_images
from mmpola.apps.prediction.predict import SKIPPED, predict
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.engine.config import add_compile_argument
from mmpola.engine.hooks.compile_backbone import compile_backbone
from mmpola.messages import UsageError, counted, printable, run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what a model finds in images, and write it as JSON', allow_abbrev=False
    )
    add_model_arguments(parser)
    add_files_arguments(parser)
    add_score_argument(parser)
    parser.add_argument(
        '--batch-size', type=int, default=1, help='images per forward pass (default: 1)'
    )
    add_compile_argument(parser)
    args = parser.parse_args()
    if args.batch_size < 1:
        raise UsageError(f'--batch-size: expected a positive integer, got {args.batch_size}')
    args.device = check_device(args.device)
    return args


def main() -> None:
    args = parse_arguments()
    cfg, on_meta = checked_config(args)
    images = find_images(args.images, args.out)
    check_outputs(images, args.out, output_suffixes(cfg), args.overwrite)
    predictor = load_predictor(cfg, on_meta, args.checkpoint, args.device)
    if args.compile is not None:
        compile_backbone(predictor.model, args.compile)
    outcome = predict(predictor, images, args.out, args.batch_size, args.score_thr)
    found = f'; {outcome.instances} detections with a score of at least {args.score_thr}'
    done = f'{args.out}: {counted(outcome.done, "image")} done, {outcome.skipped} skipped'
    print(printable(done + found if cfg.default_scope == 'mmdet' else done))
    if outcome.skipped:
        sys.exit(SKIPPED)


if __name__ == '__main__':
    run_main(main)
