"""Draws what a detector, segmenter or classifier finds in images, and writes it to files.

    python tools/predict.py CONFIG CHECKPOINT IMAGES… --out DIR [--score-thr 0.3] [--overwrite]
                            [--device cuda:0] [--compile [BACKEND]] [--cfg-options KEY=VALUE …]

IMAGES are files and folders (searched recursively). For NAME.jpg, DIR contains

    vis/NAME.jpg     detection: boxes and masks with a score above --score-thr. Segmentation: the
                     classes over the image. Classification: the five best classes beside the image
    preds/NAME.json  detection: the lists labels, scores, bboxes and masks of mmdet's DetInferencer,
                     with all instances. Classification: {image, width, height, classes: [{label,
                     class, score}]}, the five best
    preds/NAME.png   segmentation: the label of each pixel

with the same subfolders as a given folder. Images that cannot be read are named and skipped.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import json
from pathlib import Path

from mmengine.device import get_device
from PIL import Image
from tqdm import tqdm

from mmpola.apps.image_reader import load_image_config
from mmpola.apps.prediction.predictor import Prediction, load_predictor
from mmpola.engine.config import CHECKPOINT_HELP, add_compile_argument, add_options_argument
from mmpola.engine.hooks.compile_backbone import compile_backbone
from mmpola.messages import UsageError, counted, run_main
from mmpola.read_image import check_outputs, find_images


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw what a model finds in images, and write it to files', allow_abbrev=False
    )
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument('images', nargs='+', help='image files and folders (searched recursively)')
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        help='score above which a detection is drawn (default: 0.3)',
    )
    parser.add_argument(
        '--device', default=get_device(), help='cpu, cuda:1 … (default: a GPU if there is one)'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )
    add_compile_argument(parser)
    add_options_argument(parser)
    return parser.parse_args()


def write_prediction(prediction: Prediction, drawing: Path, result: Path) -> None:
    """Write the files of one image; its result comes last and marks it as complete."""
    drawing.parent.mkdir(parents=True, exist_ok=True)
    result.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(prediction.drawing).save(drawing, quality=95)
    if isinstance(prediction.result, dict):
        result.write_text(json.dumps(prediction.result))
    else:
        Image.fromarray(prediction.result).save(result)


def main() -> None:
    args = parse_args()
    cfg, model = load_image_config(args)
    images = find_images(args.images, args.out)
    predictor = load_predictor(cfg, model, args.checkpoint, args.device, args.score_thr)
    drawings = [image.output(args.out / 'vis', '.jpg') for image in images]
    suffix = predictor.result_suffix
    results = [image.output(args.out / 'preds', suffix) for image in images]
    check_outputs(drawings + results, args.overwrite)
    if args.compile is not None:
        compile_backbone(predictor.model, args.compile)

    done = 0
    files = list(zip(images, drawings, results, strict=True))
    for image, drawing, result in tqdm(files, 'predicting', leave=False, disable=None):
        try:
            prediction = predictor(image.path)
        except UsageError as error:
            tqdm.write(f'skipped: {image.path}: {error}')
            continue
        write_prediction(prediction, drawing, result)
        done += 1
    print(f'{args.out}: {counted(done, "image")} done, {len(images) - done} skipped')


if __name__ == '__main__':
    run_main(main)
