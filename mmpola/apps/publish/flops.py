"""Count parameters and multiply-accumulates of a config's model, per part and in total.

The model runs on the meta device, where tensors have no values for a detector's non-maximum
suppression and region pooling; neither of them contributes multiply-accumulates. The region heads
get as many proposals, and the mask heads as many boxes, as the config keeps. Models with deformable
attention, which reads the sizes of its maps from a tensor, run on the CPU instead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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
    """Build the config's model in eval mode, without weights and what cannot run on its device.

    Raises:
        UsageError: it cannot be built.
    """
    model: Any = build_on_meta(cfg)
    if any(type(module).__name__ == 'MultiScaleDeformableAttention' for module in model.modules()):
        model = MODELS.build(copy.deepcopy(cfg.model))  # DETR-like detectors change their config
    if hasattr(model, 'roi_head'):
        skip_selection_of_two_stages(
            model, cfg.model.test_cfg.rpn.max_per_img, cfg.model.test_cfg.rcnn.max_per_img
        )
    elif hasattr(model, 'bbox_head') and not hasattr(model, 'decoder'):
        skip_selection_of_dense_head(model)
    return model.eval()


def skip_selection_of_dense_head(model: Any) -> None:
    """Let a one-stage detector predict without non-maximum suppression."""
    head = model.bbox_head

    def predict(maps: tuple[Tensor, ...], *_: Any, **__: Any) -> list[InstanceData]:
        head(maps)
        return [InstanceData()]

    head.predict = predict


def skip_selection_of_two_stages(model: Any, proposals: int, boxes: int) -> None:
    """Let a two-stage detector predict without non-maximum suppression and region pooling.

    Args:
        model: the detector.
        proposals: number of regions that every stage's box head gets.
        boxes: number of regions that the mask head gets, if there is one.
    """
    rpn_head = model.rpn_head
    roi_head = model.roi_head

    def predict_proposals(maps: tuple[Tensor, ...], *_: Any, **__: Any) -> list[InstanceData]:
        rpn_head(maps)
        return [InstanceData(bboxes=torch.empty(proposals, 4, device='meta'))]

    def predict_regions(*_: Any, **__: Any) -> list[InstanceData]:
        run_on_pooled(roi_head.bbox_roi_extractor, roi_head.bbox_head, proposals)
        if roi_head.with_mask:
            run_on_pooled(roi_head.mask_roi_extractor, roi_head.mask_head, boxes)
        return [InstanceData()]

    rpn_head.predict = predict_proposals
    roi_head.predict = predict_regions


def run_on_pooled(extractors: Any, heads: Any, number: int) -> None:
    """Run the heads of all stages on `number` regions of the size that RoIAlign gives."""
    if not isinstance(heads, nn.ModuleList):  # a cascade has several stages
        extractors = [extractors]
        heads = [heads]
    for extractor, head in zip(extractors, heads, strict=True):
        height, width = extractor.roi_layers[0].output_size
        head(torch.empty(number, extractor.out_channels, height, width, device='meta'))


def count_macs(model: nn.Module, size: Sequence[int]) -> dict[str, float]:
    """Count multiply-accumulates, in 1e9, for one sample by module name; '' is the whole model.

    Args:
        model: a model of images or of sequences.
        size: (height, width) of an image in pixels, or (tokens,) of a sequence.
    """
    device = next(model.parameters()).device
    is_sequence = len(size) == 1
    if is_sequence:
        sequences = 2 if getattr(model, 'paired', False) else 1
        sample = torch.zeros(sequences, size[0], device=device, dtype=torch.long)
    else:
        sample = torch.zeros(1, 3, size[0], size[1], device=device)
    is_detector = any(hasattr(model, head) for head in ('bbox_head', 'roi_head', 'panoptic_head'))
    # The counter does not support the CPU's fused attention; the MATH backend consists of products
    # that it counts.
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.torchvision.deform_conv2d: deform_conv2d_flops}
    )
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        if is_detector:
            model(sample, [image_metadata(size[0], size[1])], mode='predict')
        elif isinstance(model, BaseModel):
            model(sample, mode='tensor')
        else:
            model(sample)

    prefix = type(model).__name__
    counted = {}  # name of a module that was called, such as PolaSwin.stem -> GMACs
    for name, operations in counter.get_flop_counts().items():
        counted[name] = sum(operations.values()) / 2e9
    macs = {'': counted.get('Global', 0.0)}
    for name, module in model.named_modules():
        if name:
            macs[name] = macs_of(f'{prefix}.{name}', module, counted)
    return macs


def macs_of(name: str, module: nn.Module, counted: dict[str, float]) -> float:
    """Return a module's count; if only its methods were called, the sum over its children."""
    if name in counted:
        return counted[name]
    children = module.named_children()
    return sum(macs_of(f'{name}.{child}', inner, counted) for child, inner in children)


def deform_conv2d_flops(
    _image: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    """Count a deformable convolution like an ordinary one, without interpolation."""
    return 2 * prod(weight[1:]) * prod(out_shape)


def image_metadata(height: int, width: int) -> BaseDataElement:
    """Return what a detector reads of an image: sizes before and after resizing, here equal."""
    size = (height, width)
    return BaseDataElement(
        metainfo={
            'img_shape': size,
            'ori_shape': size,
            'pad_shape': size,
            'batch_input_shape': size,
            'scale_factor': (1.0, 1.0),
        }
    )


def count_model(cfg: Config, size: Sequence[int]) -> tuple[int, int]:
    """Return (parameters, multiply-accumulates of inference on one sample).

    Args:
        cfg: config of the model.
        size: as in `count_macs`.
    """
    model = countable_model(cfg)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    macs = count_macs(model, size)['']
    return parameters, round(macs * 1e9)


def parts_with_parameters(model: nn.Module) -> list[str]:
    """Name the children of the model and the parts of its backbone, if they have parameters."""
    names = []
    for name, child in model.named_children():
        names.append(name)
        if name != 'backbone':
            continue
        for part, module in child.named_children():
            if isinstance(module, nn.ModuleList):
                names += [f'{name}.{part}.{number}' for number in range(len(module))]
            else:
                names.append(f'{name}.{part}')
    return [name for name in names if list(model.get_submodule(name).parameters())]


def print_counts(cfg: Config, size: Sequence[int]) -> None:
    """Print parameters and GMACs of a config's model for one sample, by part and in total."""
    model = countable_model(cfg)
    macs = count_macs(model, size)
    table = Table()
    table.add_column('part')
    table.add_column('parameters', justify='right')
    table.add_column('GMACs', justify='right')
    for name in parts_with_parameters(model):
        parameters = sum(p.numel() for p in model.get_submodule(name).parameters())
        table.add_row(name, f'{parameters:,}', f'{macs[name]:.2f}')
    parameters = sum(p.numel() for p in model.parameters())
    table.add_row('total', f'{parameters:,}', f'{macs[""]:.2f}', style='bold')
    Console().print(table)
