"""Exports a trained backbone, classifier, segmenter or detector to ONNX, compared with PyTorch.

    python tools/export.py CONFIG CHECKPOINT OUT.onnx [--shape H W | --dynamic] [--backbone]
                           [--overwrite] [--cfg-options KEY=VALUE …]

The program has one input, `images`: RGB pixels [B, 3, H, W], float32 in 0 … 255, or another number
of channels as the config's pipeline loads them; it normalises them itself. Without --dynamic it
takes one image of the given height and width, which are by default those that the test pipeline
of the config makes of the test images. Its outputs:

    classifier    logits [B, classes]
    segmenter     logits [B, classes, h, w] of the decode head, which mmseg resizes to the image;
                  [B, 1, h, w] if the head has one output channel
    detector      boxes [N, 4] in pixels, scores [N], labels [N], and of a mask head masks [N, h, w]
                  inside the boxes; with one dense head or two stages, one size
    --backbone    map0, map1 … [B, C, h, w] of the backbone

OUT is written only if onnxruntime computes what PyTorch computes: relative error at most 1e-4. A
detector must find the same objects as mmdet in two images of its test data.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path

from mmpola.checkpoint.write import check_destination
from mmpola.messages import UsageError, run_main
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.read import add_model_arguments, add_options_argument, load_config
from mmpola.openmmlab.config.types import library
from mmpola.openmmlab.export.detector_export import export_detector
from mmpola.openmmlab.export.onnx import export, export_model, import_onnx, threshold_note
from mmpola.openmmlab.export.size import evaluated_size, sides
from mmpola.openmmlab.start.fit import read_checkpoint_for


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Export a model to ONNX and compare it with PyTorch', allow_abbrev=False
    )
    add_model_arguments(parser)
    parser.add_argument('out', type=Path, metavar='OUT', help='file to write, .onnx')
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        '--shape',
        type=int,
        nargs=2,
        metavar=('H', 'W'),
        help='size of the one image, in pixels (default: what the test pipeline makes)',
    )
    sizes.add_argument('--dynamic', action='store_true', help='any batch, height and width')
    parser.add_argument(
        '--backbone', action='store_true', help='export the maps of the backbone only'
    )
    parser.add_argument('--overwrite', action='store_true', help='overwrite OUT')
    add_options_argument(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    import_onnx()
    check_destination(args.out, args.overwrite)
    cfg = load_config(args)
    built = validate_config(cfg)
    checkpoint = read_checkpoint_for(args.checkpoint, built)
    shape = tuple(args.shape or ())
    if not shape and not args.dynamic:
        shape, source = evaluated_size(cfg)
        print(f'images of {sides(shape)} pixels (width x height), as {source}')
    test_cfg = cfg.model.get('test_cfg') or {}
    if test_cfg.get('mode') == 'slide' and not args.backbone:
        print(
            "model.test_cfg.mode='slide': predict joins the results of crops; the program reads "
            f'the whole image, or a crop with --shape {" ".join(map(str, test_cfg["crop_size"]))}'
        )
    if library(cfg) == 'mmdet' and not args.backbone:
        if args.dynamic:
            raise UsageError('--dynamic: a detector is exported for one size, or with --backbone')
        pixels, scores = export_detector(cfg, built, checkpoint, args.out, shape)
        errors = f'against PyTorch {pixels:.1e} pixels, {scores:.1e} of scores'
    else:
        model = export_model(cfg, built, checkpoint, args.backbone)
        error = export(model, args.out, None if args.dynamic else shape)
        errors = f'relative error against PyTorch {error:.1e}'
        note = threshold_note(model.model)
        if note is not None:
            print(note)
    size = args.out.stat().st_size / 1e6
    print(f'{args.out}: {size:.1f} MB, largest {errors}')


if __name__ == '__main__':
    run_main(main)
