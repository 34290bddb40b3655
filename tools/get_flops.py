"""Prints parameters and multiply-accumulates of a config's model, per part and per stage of the backbone.

    python tools/get_flops.py CONFIG [--shape HEIGHT WIDTH]

Matrix products and convolutions are counted, those inside scaled_dot_product_attention too, on one zero image in
inference; a detector's region heads see as many proposals, its mask head as many boxes, as its config keeps.
"""

from __future__ import annotations

import argparse

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from rich.console import Console
from rich.table import Table
from runtime import add_common_arguments, load_config, run_main
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def build_model(cfg: Config) -> nn.Module:
    """The config's model in eval mode; weights do not matter here, so none are read.

    A region head's score threshold is lifted: untrained scores lie below it, and no box would reach the mask head.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    if 'rcnn' in (cfg.model.get('test_cfg') or {}):
        cfg.model.test_cfg.rcnn.score_thr = -1.0
    return MODELS.build(cfg.model).eval()


def count_macs(model: nn.Module, height: int, width: int) -> dict[str, float]:
    """Multiply-accumulates in 1e9 of one image, by the name of every module; '' is the whole model."""
    image = torch.zeros(1, 3, height, width, device=next(model.parameters()).device)
    # The counter does not know the CPU's fused attention; the plain one is made of products that it counts.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        if hasattr(model, 'bbox_head') or hasattr(model, 'roi_head'):
            model(image, [_sample(height, width)], mode='predict')
        elif isinstance(model, BaseModel):
            model(image, mode='tensor')
        else:
            model(image)
    counted = {name: sum(ops.values()) / 2e9 for name, ops in counter.get_flop_counts().items()}
    prefix = type(model).__name__

    def macs(name: str, module: nn.Module) -> float:
        """Of a module that was called, its own count; of one whose methods were called, that of its children."""
        if name in counted:
            return counted[name]
        return sum(macs(f'{name}.{child}', inner) for child, inner in module.named_children())

    return {name: macs(f'{prefix}.{name}' if name else 'Global', module) for name, module in model.named_modules()}


def _sample(height: int, width: int) -> BaseDataElement:
    """What a detector asks about an image: its sizes, before and after resizing."""
    from mmdet.structures import DetDataSample

    shape = (height, width)
    return DetDataSample(
        metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1, 1))
    )


def parts(model: nn.Module) -> list[str]:
    """Names of the rows: every child of the model and, after the backbone, every part of it that has parameters."""
    names = []
    for name, child in model.named_children():
        inner = [name]
        if name == 'backbone':
            inner += [
                f'{name}.{part}' for part, module in child.named_children() if not isinstance(module, nn.ModuleList)
            ]
            lists = [(part, module) for part, module in child.named_children() if isinstance(module, nn.ModuleList)]
            inner += [f'{name}.{part}.{index}' for part, module in lists for index in range(len(module))]
        names += [row for row in inner if any(True for _ in model.get_submodule(row).parameters())]
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description='Count parameters and multiply-accumulates of a model')
    parser.add_argument('config', help='config file')
    parser.add_argument('--shape', type=int, nargs=2, default=(800, 1280), metavar=('HEIGHT', 'WIDTH'), help='pixels')
    add_common_arguments(parser)
    args = parser.parse_args()
    model = build_model(load_config(args))
    macs = count_macs(model, *args.shape)
    print(f'{args.config} at {args.shape[0]} x {args.shape[1]}')
    table = Table()
    for heading in ('part', 'parameters', 'GMACs'):
        table.add_column(heading, justify='left' if heading == 'part' else 'right')
    for name in [*parts(model), '']:
        module = model.get_submodule(name)
        parameters = sum(p.numel() for p in module.parameters())
        table.add_row(name or 'total', f'{parameters:,}', f'{macs[name]:.2f}', style=None if name else 'bold')
    Console().print(table)


if __name__ == '__main__':
    run_main(main)
