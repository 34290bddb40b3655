"""Parameters and multiply-accumulates of a config's model, per part and in all.

A detector's suppression and region pooling depend on values, which the meta device has not; neither is a product that
counts. `count_model` gives the region heads as many proposals, and the mask heads as many boxes, as a config keeps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
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
    shape = (height, width)
    return BaseDataElement(
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


def count_model(cfg: Config, height: int, width: int) -> tuple[int, int]:
    """(parameters, multiply-accumulates of one image of height x width pixels in inference)."""
    with torch.device('meta'):
        model: Any = build_model(cfg)
    parameters = sum(p.numel() for p in model.parameters())
    if hasattr(model, 'roi_head'):
        model.rpn_head.predict = partial(_proposals, model.rpn_head, cfg.model.test_cfg.rpn.max_per_img)
        model.roi_head.predict = partial(_regions, model.roi_head, cfg.model.test_cfg.rcnn.max_per_img)
    elif hasattr(model, 'bbox_head'):
        model.bbox_head.predict = partial(_dense, model.bbox_head)
    return parameters, round(count_macs(model, height, width)[''] * 1e9)


def _dense(head: nn.Module, maps: tuple[Tensor, ...], *_: Any, **__: Any) -> list[InstanceData]:
    """A dense head without its suppression."""
    head(maps)
    return [InstanceData()]


def _proposals(head: nn.Module, number: int, maps: tuple[Tensor, ...], *_: Any, **__: Any) -> list[InstanceData]:
    """The region proposal network without its suppression: `number` boxes."""
    head(maps)
    return [InstanceData(bboxes=torch.empty(number, 4, device='meta'))]


def _regions(
    head: nn.Module, boxes: int, maps: tuple[Tensor, ...], proposals: list[InstanceData], *_: Any, **__: Any
) -> list[InstanceData]:
    """Every stage's box head on all proposals and, where there is one, its mask head on `boxes` boxes."""
    _on_pooled(head, 'bbox', len(proposals[0].bboxes))
    if head.with_mask:
        _on_pooled(head, 'mask', boxes)
    return [InstanceData()]


def _on_pooled(head: nn.Module, kind: str, number: int) -> None:
    """Run the 'bbox' or 'mask' heads of all stages on `number` regions as RoIAlign would pool them."""
    extractors, heads = getattr(head, f'{kind}_roi_extractor'), getattr(head, f'{kind}_head')
    stages = zip(extractors, heads, strict=True) if isinstance(heads, nn.ModuleList) else [(extractors, heads)]
    for extractor, stage in stages:
        size = extractor.roi_layers[0].output_size
        stage(torch.empty(number, extractor.out_channels, *size, device='meta'))
