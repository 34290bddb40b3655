"""Draws the effective receptive fields of models side by side, and prints how large they are.

    python tools/receptive_field.py MODEL[=CHECKPOINT] … --out FILE.pdf [--pretrained]
                                    [--labels LABEL …] [--images PATH …] [--number N] [--size SIDE]
                                    [--device cuda:0] [--overwrite] [--dpi 300] [--cmap NAME]
                                    [--width-inches WIDTH]

MODEL is a name of timm, such as pvt_v2_b1, or of mmpola, such as pola_pvt_tiny. CHECKPOINT is a
file that fits the whole model; for a model of mmpola, a path, URL or name of any file that mmpola
reads. docs/analysis.md defines the field, describes the arguments, and shows how to draw the field
of any other backbone, such as mmdet's.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from timm.data import create_transform
from timm.models import PretrainedCfg
from torch import Tensor, nn

from mmpola.apps.analysis import draw_receptive_fields, effective_receptive_field
from mmpola.apps.analysis.receptive_field import area_texts
from mmpola.apps.analysis.saving import FORMATS, add_style_arguments, save_figure, style_of
from mmpola.apps.arguments import usable_device
from mmpola.messages import UsageError, first_line, listed, run_main, suggestion
from mmpola.progress import progress
from mmpola.read_image import find_images, read_pixels
from mmpola.zoo import NAMED


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Draw effective receptive fields side by side', allow_abbrev=False
    )
    parser.add_argument(
        'models', nargs='+', metavar='MODEL[=CHECKPOINT]', help='models of timm or mmpola'
    )
    parser.add_argument('--out', type=Path, required=True, help='the figure, a .pdf, .png or .svg')
    parser.add_argument(
        '--pretrained', action='store_true', help='published weights for models without CHECKPOINT'
    )
    parser.add_argument(
        '--labels', nargs='+', metavar='LABEL', help='titles of the panels (default: the models)'
    )
    parser.add_argument(
        '--images', nargs='+', metavar='PATH', help='images, resized to the size (default: noise)'
    )
    parser.add_argument(
        '--number', type=int, default=16, metavar='N', help='most images to use (default: 16)'
    )
    parser.add_argument(
        '--size', type=int, default=224, metavar='SIDE', help='side in pixels (default: 224)'
    )
    parser.add_argument('--device', help='default: a GPU if there is one, else the CPU')
    parser.add_argument('--overwrite', action='store_true', help='overwrite FILE')
    add_style_arguments(parser)
    args = parser.parse_args()
    args.style = style_of(args)
    args.device = usable_device(args.device)
    args.labels = args.labels or args.models
    for model in args.models:
        name = model.partition('=')[0]
        if not timm.is_model(name):
            meant = suggestion(name, timm.list_models())
            raise UsageError(
                f'MODEL: expected a name of timm.list_models() or of mmpola, got {name}{meant}'
            )
    if len(set(args.labels)) != len(args.models):
        raise UsageError(
            f'--labels: expected {len(args.models)} different ones, got {listed(args.labels)}'
        )
    for option, value in (('--number', args.number), ('--size', args.size)):
        if value < 1:
            raise UsageError(f'{option}: expected at least 1, got {value}')
    if args.out.suffix.removeprefix('.') not in FORMATS:
        raise UsageError(f'--out: expected a file of the formats {listed(FORMATS)}, got {args.out}')
    if args.out.exists() and not args.overwrite:
        raise UsageError(
            f'--out: expected a new file, got {args.out}, which exists; --overwrite permits that'
        )
    return args


@contextmanager
def error_names(model: str) -> Iterator[None]:
    """Turn any error of a model into one line that begins with its name."""
    try:
        yield
    except Exception as error:  # models of timm raise many types
        raise UsageError(f'{model}: {first_line(error)}') from error


def build(model: str, size: int, pretrained: bool) -> nn.Module:
    """Create a classifier of timm or mmpola.

    With features_only, timm would ignore weights that do not fit.
    """
    name, _, checkpoint = model.partition('=')
    options: dict[str, Any]
    if not checkpoint:
        options = {'pretrained': pretrained}
    elif name in NAMED:
        options = {'pretrained': True, 'pretrained_cfg_overlay': {'file': checkpoint}}
    else:
        options = {'checkpoint_path': checkpoint}
    if getattr(timm.get_pretrained_cfg(name), 'fixed_input_size', False):
        options['img_size'] = size
    return timm.create_model(name, **options)


def read_images(paths: list[Path], model: str, size: int) -> Tensor:
    """Return the images [N, 3, size, size] of files as a model reads them."""
    cfg = timm.get_pretrained_cfg(model.partition('=')[0]) or PretrainedCfg()
    transform: Any = create_transform(
        (3, size, size), mean=cfg.mean, std=cfg.std, crop_pct=1.0, crop_mode='squash'
    )
    images = []
    for path in paths:
        rgb = read_pixels(path)[..., ::-1].copy()
        images.append(transform(Image.fromarray(rgb)))
    return torch.stack(images)


def main() -> None:
    args = parse_args()
    paths = []
    if args.images:
        images = find_images(args.images, args.out)
        paths = [image.path for image in images[: args.number]]
    networks = []
    for model in args.models:
        torch.manual_seed(0)
        with error_names(model):
            networks.append(build(model, args.size, args.pretrained))
    torch.manual_seed(0)
    noise = torch.randn(args.number, 3, args.size, args.size)
    fields = {}
    images_per_model = len(paths) or args.number
    with progress('gradients', len(networks) * images_per_model) as advance:
        for model, label, network in zip(args.models, args.labels, networks, strict=True):
            inputs = noise
            if paths:
                inputs = read_images(paths, model, args.size)
            with error_names(model):
                fields[label] = effective_receptive_field(
                    network.to(args.device), inputs.to(args.device), advance
                )
    save_figure(draw_receptive_fields(fields, args.width_inches), args.out, args.style)
    for label, field in fields.items():
        print(f'{label}: {", ".join(area_texts(field))} of the area')
    print(f'wrote {args.out}')


if __name__ == '__main__':
    run_main(main)
