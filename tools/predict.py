"""Draws what a detector, segmenter or classifier finds in images, and writes it to files.

    python tools/predict.py [CONFIG CHECKPOINT] IMAGES… [--out DIR] [--score-thr 0.3] [--overwrite]
                            [--device cuda:0] [--compile [BACKEND]] [--skip-checks NAME …]
                            [--cfg-options KEY=VALUE …]
    python tools/predict.py --classes

Without CONFIG and CHECKPOINT, a small detector that comes with mmpola looks for the 80 everyday
things that --classes lists. IMAGES are files and folders (searched recursively). For NAME.jpg, DIR
contains

    vis/NAME.jpg     detection: boxes and masks with a score above --score-thr. Segmentation: the
                     classes over the image. Classification: the five best classes beside the image
    preds/NAME.json  detection: the lists labels, scores, bboxes and masks of mmdet's DetInferencer,
                     with all instances. Classification: {image, width, height, classes: [{label,
                     class, name, score}]}, the five best, `name` in words
    preds/NAME.png   segmentation: the number of each pixel's class, from 0. Panoptic segmentation:
                     the id of each pixel's segment, R + 256 G + 256² B; NAME.json lists the
                     segments

with the same subfolders as a given folder. NAME gets the suffix of the image, or the name of its
folder, where two images would share it. Images are read by the test pipeline of the config, without
its steps that load annotations; those that cannot be read, predicted or written are named and
skipped. The exit status is 1 if all were.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from mmpola.command import repository_path
from mmpola.images import check_outputs, find_images
from mmpola.kernels.gate import ensure_checked
from mmpola.messages import UsageError, counted, first_line, run_main
from mmpola.openmmlab.checks import add_skip_argument, image_lines, names_to_skip
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.read import (
    add_compile_argument,
    add_device_argument,
    add_options_argument,
)
from mmpola.openmmlab.predict.predictor import Predictor, result_files
from mmpola.openmmlab.predict.reader import load_image_config, open_reader
from mmpola.openmmlab.predict.results import NOTHING, numbers_note
from mmpola.openmmlab.start.fit import (
    load_model,
    read_checkpoint_for,
    read_training_checkpoint,
)
from mmpola.pretraining.compile_backbone import compile_backbone
from mmpola.zoo import EVERYDAY_CONFIG, EVERYDAY_DETECTOR

NOTHING_EVERYDAY = (
    'nothing found: it knows 80 everyday things, `mmpola predict --classes` lists them'
)

ONE_BOX_A_THING = {
    'model.test_cfg.rcnn.nms.iou_threshold': 0.3,
    'model.test_cfg.rcnn.nms.class_agnostic': True,
}
"""Settings for pictures: boxes that overlap are one thing. Average precision would be lower."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what a model finds in images, and write it to files', allow_abbrev=False
    )
    parser.add_argument(
        'images',
        nargs='*',
        metavar='[CONFIG CHECKPOINT] IMAGES',
        help='a config file, which ends with .py, and weights of its model: a path, URL or name '
        'such as mmpola://pola_swin_tiny, see docs/weights.md (default: a small detector of '
        'everyday things); then image files and folders (searched recursively)',
    )
    parser.add_argument(
        '--classes', action='store_true', help='list what the detector of everyday things knows'
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('predictions'),
        help='folder for the results (default: predictions)',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        help='score above which a detection is drawn (default: 0.3)',
    )
    add_device_argument(parser)
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )
    add_compile_argument(parser)
    add_skip_argument(parser)
    add_options_argument(parser)
    args = parser.parse_args()
    args.is_everyday = not (args.images and args.images[0].endswith('.py'))
    if args.is_everyday:
        args.config = str(repository_path(EVERYDAY_CONFIG))
        args.checkpoint = f'mmpola://{EVERYDAY_DETECTOR}'
        args.cfg_options = {**ONE_BOX_A_THING, **(args.cfg_options or {})}
        if not args.images and not args.classes:
            parser.error('expected images, or CONFIG CHECKPOINT IMAGES, got none')
    elif len(args.images) < 3:
        parser.error(f'expected CONFIG CHECKPOINT IMAGES, got only {" ".join(args.images)}')
    else:
        args.config, args.checkpoint, *args.images = args.images
    return args


def main() -> None:
    args = parse_args()
    if args.classes:
        print('\n'.join(read_training_checkpoint(args.checkpoint).classes))
        return
    cfg, model = load_image_config(args)
    names_to_skip(cfg)
    reader = open_reader(cfg)
    images = find_images(args.images, args.out, reader.suffixes)
    outputs = [path for image in images for path in result_files(image, args.out).values()]
    check_outputs(outputs, args.overwrite, images)
    checkpoint = read_checkpoint_for(args.checkpoint, model)
    if args.device != 'cpu':
        ensure_checked('float32')
    model = load_model(model, checkpoint).to(args.device)
    if args.compile is not None:
        compile_backbone(unwrapped(model), args.compile)
    predictor = Predictor(cfg, model, reader, checkpoint, args.score_thr)

    done = 0
    best_score = None
    for image in tqdm(images, 'predicting', leave=False, disable=None):
        try:
            prediction = predictor(image.path)
            prediction.write(result_files(image, args.out))
        except UsageError as error:
            tqdm.write(f'skipped: {image.path}: {error}')
            continue
        except Exception as error:  # a full disk, and any type from models for too few pixels
            tqdm.write(f'skipped: {image.path}: {first_line(error)}')
            continue
        done += 1
        found = prediction.summary
        if args.is_everyday and found == NOTHING:
            found = NOTHING_EVERYDAY
        tqdm.write(f'{image.path}: {found}')
        if prediction.best_score is not None:
            best_score = max(best_score or 0.0, prediction.best_score)
    for line in image_lines(cfg, reader):
        print(line)
    note = numbers_note(reader.metainfo)
    if note is not None:
        print(note)
    if best_score is not None and best_score <= args.score_thr:
        print(
            f'nothing is drawn: the highest score is {best_score:.3f}, which is not above '
            f'--score-thr {args.score_thr:g}'
        )
    counts = f'{counted(done, "image")} done, {len(images) - done} skipped'
    if done == 0:
        print(counts)
        sys.exit(1)
    print(f'{counts}; see {args.out / "vis"}')


if __name__ == '__main__':
    run_main(main)
