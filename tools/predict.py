"""Draws what a model finds in pictures, and writes it as JSON beside each.

    python tools/predict.py CONFIG CHECKPOINT IMAGES… --out DIR [--score-thr 0.3] [--batch-size 1] [--device cuda:0]
                            [--overwrite] [--cfg-options KEY=VALUE …]

IMAGES are files, folders with everything below them, and patterns such as 'photos/**/*.jpg'. The folders below a given
one, or below the fixed part of a pattern, are kept in DIR. For PICTURE.jpg it holds

    PICTURE.jpg     boxes and masks above --score-thr, or the segmentation, drawn
    PICTURE.json    detection: {image, width, height, instances: [{label, class, score, box, mask}]}: those drawn,
                    box = [x1, y1, x2, y2] in pixels, mask = COCO's run lengths {size, counts}
                    segmentation: {image, width, height, label_map, classes: [{label, class, share}]}, the largest share
                    of the pixels first
    PICTURE.png     segmentation: the label of every pixel, as numbered in the JSON

Nothing is written over without --overwrite, a picture that was read never. Exit status 0: all pictures are done; 2: the
arguments cannot work, nothing was done; 3: pictures could not be read, were named and skipped, the others are done.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from mmpola.checkpoint import training as training_checkpoint
from mmpola.engine.config import add_common_arguments, load_config
from mmpola.messages import UsageError, run_main
from mmpola.prediction import NOISE, SKIPPED, build_predictor, check_device, check_outputs, find_pictures, predict


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Draw what a model finds in pictures', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of tools/train.py')
    parser.add_argument('images', nargs='+', help='files, folders, patterns')
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='detections below this score are left out')
    parser.add_argument('--batch-size', type=int, default=1, help='pictures at once')
    parser.add_argument('--overwrite', action='store_true', help='replace results of an earlier run')
    add_common_arguments(parser)
    args = parser.parse_args()
    if args.batch_size < 1:
        raise UsageError(f'--batch-size: at least 1, got {args.batch_size}')
    args.device = check_device(args.device)
    return args


def main() -> None:
    args = parse_arguments()
    for message in NOISE:
        warnings.filterwarnings('ignore', message=message)
    cfg = load_config(args)
    if cfg.get('default_scope') not in ('mmdet', 'mmseg'):
        raise UsageError(
            f'{args.config}: predictions of detectors (mmdet) and segmenters (mmseg) are drawn; '
            f'its default_scope is {cfg.get("default_scope")}'
        )
    if 'module' in cfg.model:
        raise UsageError(f'{args.config}: test-time augmentation is for tools/test.py; give the config that it wraps')
    suffixes = ('.jpg', '.json') if cfg.default_scope == 'mmdet' else ('.jpg', '.png', '.json')
    pictures = find_pictures(args.images, args.out)
    check_outputs(pictures, args.out, suffixes, args.overwrite)
    checkpoint = training_checkpoint.read(args.checkpoint)
    training_checkpoint.check_fits(checkpoint, cfg)
    if checkpoint.averaged:
        print(f'{args.checkpoint}: {training_checkpoint.AVERAGED}')
    predictor = build_predictor(cfg, checkpoint, args.device)
    skipped = predict(predictor, pictures, args.out, args.batch_size, args.score_thr)
    print(f'{args.out}: {len(pictures) - skipped} pictures done, {skipped} skipped')
    if skipped:
        sys.exit(SKIPPED)


if __name__ == '__main__':
    run_main(main)
