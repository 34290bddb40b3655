"""Count parameters and multiply-accumulates of a config's model, per part and in total.

The model runs on the meta device, where tensors have no values for a detector's non-maximum
suppression and region pooling; neither of them contributes multiply-accumulates. The region heads
get as many proposals, and the mask heads as many boxes, as the config keeps. Models with deformable
attention, which reads the sizes of its maps from a tensor, run on the CPU instead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torchvision  # noqa: F401 registers deform_conv2d
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement, InstanceData
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmpola.engine.validate import build_on_meta


def countable_model(cfg: Config) -> Any:
    """Build the config's model in eval mode, without reading weights, and leave out what cannot run on its device.

    Raises:
        UsageError: it cannot be built.
    """
    model: Any = build_on_meta(cfg)
    if any(type(module).__name__ == 'MultiScaleDeformableAttention' for module in model.modules()):
        model = MODELS.build(copy.deepcopy(cfg.model))  # DETR-like detectors change their config
    if hasattr(model, 'roi_head'):
        model.rpn_head.predict = partial(
            _proposals, model.rpn_head, cfg.model.test_cfg.rpn.max_per_img
        )
        model.roi_head.predict = partial(
            _regions, model.roi_head, cfg.model.test_cfg.rcnn.max_per_img
        )
    elif hasattr(model, 'bbox_head') and not hasattr(model, 'decoder'):
        model.bbox_head.predict = partial(_dense, model.bbox_head)
    return model.eval()


def count_macs(model: nn.Module, size: Sequence[int]) -> dict[str, float]:
    """Count multiply-accumulates, in 1e9, for one sample by module name; '' is the whole model.

    Args:
        model: of images or of sequences.
        size: (height, width) of an image in pixels, or (tokens,) of a sequence.
    """
    device = next(model.parameters()).device
    if len(size) == 1:
        sequences = 2 if getattr(model, 'paired', False) else 1
        sample = torch.zeros(sequences, *size, device=device, dtype=torch.long)
    else:
        sample = torch.zeros(1, 3, *size, device=device)
    # The counter does not support the CPU's fused attention; the MATH backend consists of products
    # that it counts.
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.torchvision.deform_conv2d: _deform_conv2d_flops}
    )
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        if any(hasattr(model, head) for head in ('bbox_head', 'roi_head', 'panoptic_head')):
            model(sample, [sample_of(*size)], mode='predict')
        elif isinstance(model, BaseModel):
            model(sample, mode='tensor')
        else:
            model(sample)
    counted = {name: sum(ops.values()) / 2e9 for name, ops in counter.get_flop_counts().items()}
    prefix = type(model).__name__

    def macs(name: str, module: nn.Module) -> float:
        """Return a module's count, or the sum over its children if it was not called but its methods were."""
        if name in counted:
            return counted[name]
        return sum(macs(f'{name}.{child}', inner) for child, inner in module.named_children())

    return {
        name: macs(f'{prefix}.{name}' if name else 'Global', module)
        for name, module in model.named_modules()
    }


def _deform_conv2d_flops(
    _image: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    """Count a deformable convolution like an ordinary one, without the interpolation between pixels."""
    return 2 * prod(weight[1:]) * prod(out_shape)


def sample_of(height: int, width: int) -> BaseDataElement:
    """Return the metadata that a detector reads of an image: its sizes before and after resizing, which are equal."""
    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    return BaseDataElement(
        metainfo=dict.fromkeys(names, (height, width)) | {'scale_factor': (1.0, 1.0)}
    )


def parts(model: nn.Module) -> list[str]:
    """Name the rows of the table: the children of the model and the parts of its backbone that have parameters."""
    names = []
    for name, child in model.named_children():
        names.append(name)
        for part, module in child.named_children() if name == 'backbone' else ():
            each = (
                [f'{part}.{i}' for i in range(len(module))]
                if isinstance(module, nn.ModuleList)
                else [part]
            )
            names += [f'{name}.{inner}' for inner in each]
    return [name for name in names if any(True for _ in model.get_submodule(name).parameters())]


def print_table(cfg: Config, size: Sequence[int]) -> None:
    """Print parameters and GMACs of the config's model for one sample, a row per part and one for the total."""
    model = countable_model(cfg)
    macs = count_macs(model, size)
    table = Table()
    for heading in ('part', 'parameters', 'GMACs'):
        table.add_column(heading, justify='left' if heading == 'part' else 'right')
    for name in [*parts(model), '']:
        parameters = sum(p.numel() for p in model.get_submodule(name).parameters())
        table.add_row(
            name or 'total', f'{parameters:,}', f'{macs[name]:.2f}', style=None if name else 'bold'
        )
    Console().print(table)


def count_model(cfg: Config, size: Sequence[int]) -> tuple[int, int]:
    """Return (parameters, multiply-accumulates of inference on one sample); `size` as in `count_macs`."""
    model = countable_model(cfg)
    return sum(p.numel() for p in model.parameters()), round(count_macs(model, size)[''] * 1e9)


def _dense(head: nn.Module, maps: tuple[Tensor, ...], *_: Any, **__: Any) -> list[InstanceData]:
    """Run a dense head without non-maximum suppression."""
    head(maps)
    return [InstanceData()]


def _proposals(
    head: nn.Module, number: int, maps: tuple[Tensor, ...], *_: Any, **__: Any
) -> list[InstanceData]:
    """Run a region proposal network without non-maximum suppression; returns `number` boxes."""
    head(maps)
    return [InstanceData(bboxes=torch.empty(number, 4, device='meta'))]


def _regions(
    head: nn.Module,
    boxes: int,
    maps: tuple[Tensor, ...],
    proposals: list[InstanceData],
    *_: Any,
    **__: Any,
) -> list[InstanceData]:
    """Run every stage's box head on all proposals and, if there is one, its mask head on `boxes` boxes."""
    _on_pooled(head, 'bbox', len(proposals[0].bboxes))
    if head.with_mask:
        _on_pooled(head, 'mask', boxes)
    return [InstanceData()]


def _on_pooled(head: nn.Module, kind: str, number: int) -> None:
    """Run the 'bbox' or 'mask' heads of all stages on `number` regions of the size that RoIAlign gives."""
    extractors, heads = getattr(head, f'{kind}_roi_extractor'), getattr(head, f'{kind}_head')
    stages = (
        zip(extractors, heads, strict=True)
        if isinstance(heads, nn.ModuleList)
        else [(extractors, heads)]
    )
    for extractor, stage in stages:
        size = extractor.roi_layers[0].output_size
        stage(torch.empty(number, extractor.out_channels, *size, device='meta'))
