"""Exports a trained model to ONNX, after comparing it with PyTorch on a real image.

    python tools/export.py CONFIG CHECKPOINT OUT.onnx [--shape H W | --dynamic] [--backbone]
                           [--half] [--opset N] [--image PATH] [--overwrite]
                           [--cfg-options KEY=VALUE …]

The program has one input, `images`: RGB pixels [B, 3, H, W], float32 in 0 … 255; it normalises them
itself. Without --dynamic it takes one image of the given height and width. Its outputs:

    classifier            logits [B, classes]
    segmenter             logits [B, classes, h, w] of the decode head, which mmseg resizes to the
                          image
    one-stage detector    boxes [B, P, 4] in pixels and scores [B, P, classes] before non-maximum
                          suppression, where the head decodes as most of mmdet do; else the maps of
                          its head, scores0 … and boxes0 …
    others                output0_0 …, what the model returns in mode 'tensor'
    two-stage detector    map0, map1 … of the neck, boxes [B, P, 4] and scores [B, P, 1] of the
                          proposals before non-maximum suppression; RoI heads are not exported
    --backbone            map0, map1 … [B, C, h, w] of the backbone

OUT is written only if onnxruntime computes what PyTorch computes: relative error at most 1e-4, with
--half 2e-2. Exit status 2: it does not, or the arguments cannot work; nothing was written.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import warnings
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from mmpola.apps.publish.export import LOWEST_OPSET, ExportReport, check_packages, export
from mmpola.apps.publish.export_model import default_shape, export_model
from mmpola.checkpoint.write import check_destination
from mmpola.classification.data_config import name_imagenet_classes
from mmpola.config_tree import leaves
from mmpola.engine.config import CHECKPOINT_HELP, add_options_argument, load_config
from mmpola.engine.training_checkpoint import read_fitting
from mmpola.engine.validate import validate_config
from mmpola.messages import UsageError, first_line, run_main
from mmpola.read_image import rgb_image, unreadable


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Export a model to ONNX and compare it with PyTorch; docs/tools.md describes '
        'inputs and outputs',
        allow_abbrev=False,
    )
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument('out', type=Path, metavar='OUT', help='file to write, .onnx')
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        '--shape',
        type=int,
        nargs=2,
        metavar=('H', 'W'),
        help='size of the one image, in pixels (default: 800 1344 for detectors, 512 512 for '
        'segmenters, the input size of the test data for classifiers)',
    )
    sizes.add_argument('--dynamic', action='store_true', help='any batch, height and width')
    parser.add_argument(
        '--backbone', action='store_true', help='export the maps of the backbone only'
    )
    parser.add_argument('--half', action='store_true', help='float16 weights and activations')
    parser.add_argument(
        '--opset',
        type=int,
        help=f"version of ONNX's operators, from {LOWEST_OPSET} (default: torch's)",
    )
    parser.add_argument(
        '--image', type=Path, help='image to compare on (default: the first of the test data)'
    )
    parser.add_argument('--overwrite', action='store_true', help='overwrite OUT')
    add_options_argument(parser)
    args = parser.parse_args()
    if args.opset is not None and args.opset < LOWEST_OPSET:
        raise UsageError(f'--opset: expected an integer from {LOWEST_OPSET}, got {args.opset}')
    if args.out.suffix != '.onnx':
        raise UsageError(f'OUT: expected a name that ends in .onnx, got {args.out}')
    if args.shape is not None and min(args.shape) < 1:
        raise UsageError(
            f'--shape: expected two integers from 1, got {args.shape[0]} {args.shape[1]}'
        )
    return args


def image_to_compare(path: Path | None, cfg: Config) -> Image.Image:
    """Read an image as RGB; None stands for the first image of the config's test data.

    Raises:
        UsageError: it is missing or cannot be read.
    """
    if path is not None:
        reason = unreadable(path)
        if reason is not None:
            raise UsageError(f'--image: {path}: {reason}')
        return rgb_image(path.read_bytes())
    try:
        init_default_scope(cfg.get('default_scope', 'mmengine'))
        dataset = DATASETS.build(next(leaves(cfg.test_dataloader.dataset)))
        return rgb_image(Path(dataset.get_data_info(0)['img_path']).read_bytes())
    except Exception as error:  # missing or broken data, in the words of three libraries
        raise UsageError(
            f'no image of the test data can be read ({first_line(error)}); name one by --image'
        ) from error


def print_report(path: Path, report: ExportReport) -> None:
    print(f'{path}: {report.size / 1e6:.1f} MB, opset {report.opset}')
    tensors = {**report.inputs, **report.outputs}
    for name, dimensions in tensors.items():
        shown = []
        for dimension in dimensions:
            text = str(dimension)
            is_expression = isinstance(dimension, str) and not dimension.isidentifier()
            if is_expression:  # they are long
                text = '?'
            shown.append(text)
        print(f'  {name:<8} {" x ".join(shown)}')
    batch, height, width = report.compared
    runtime, eager = report.seconds
    print(
        f'  largest relative error against PyTorch {report.error:.1e}; '
        f'{batch} x {height} x {width} pixels take '
        f'{runtime:.3f} s in onnxruntime, {eager:.3f} s in PyTorch'
    )


def main() -> None:
    args = parse_args()
    warnings.filterwarnings('ignore', module='mm(det|seg)')  # about losses, which are not exported
    check_packages()
    check_destination(args.out, args.overwrite)
    cfg = load_config(args)
    on_meta = validate_config(cfg)
    name_imagenet_classes(cfg)
    image = image_to_compare(args.image, cfg)
    checkpoint = read_fitting(args.checkpoint, cfg, on_meta)
    model = export_model(cfg, checkpoint, args.backbone)
    shape = None
    if args.shape:
        shape = tuple(args.shape)
    elif not args.dynamic:
        shape = default_shape(cfg)
    report = export(model, image, args.out, shape=shape, opset=args.opset, half=args.half)
    print_report(args.out, report)


if __name__ == '__main__':
    run_main(main)
