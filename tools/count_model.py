"""Parameters and multiply-accumulates of a config's whole model, on the meta device: nothing is computed or read.

A detector's suppression and region pooling depend on values, which the meta device has not; neither is a product that
counts. Here the region heads see as many proposals, and the mask heads as many boxes, as the config keeps at most.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from get_flops import build_model, count_macs
from mmengine.config import Config
from mmengine.structures import InstanceData
from torch import Tensor, nn


def count_model(cfg: Config, height: int, width: int) -> tuple[int, int]:
    """(parameters, multiply-accumulates of one image of height x width pixels in inference)."""
    with torch.device('meta'):
        model = build_model(cfg)
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
