"""Count parameters and multiply-accumulates of a config's model, for the tables of models.

The model runs on the meta device, where tensors have no values for a detector's non-maximum
suppression and region pooling; neither of them contributes multiply-accumulates. The region heads
get as many proposals, and the mask heads as many boxes, as the config keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torchvision  # noqa: F401 registers deform_conv2d
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmpola.classification.data_config import evaluation_transform
from mmpola.engine.validate import build_on_meta


def input_size(cfg: Config) -> tuple[int, ...]:
    """Return (height, width) in pixels of a config's images, or (tokens,) of its sequences.

    Detectors have images of many sizes; 800 x 1280 is the size at which they are usually counted.
    """
    backbone = cfg.model.get('backbone', {})
    if 'length' in backbone:
        return (backbone['length'],)
    scope = cfg.get('default_scope')
    if scope == 'mmdet':
        return (800, 1280)
    if scope == 'mmseg':
        crop = cfg.model.data_preprocessor.get('size') or (512, 512)
        return tuple(crop)
    size = evaluation_transform(cfg)['input_size']
    if isinstance(size, int):
        return (size, size)
    return tuple(size[-2:])


def count_model(cfg: Config, size: Sequence[int]) -> tuple[int, int]:
    """Return (parameters, multiply-accumulates of inference on one sample).

    Args:
        cfg: config of the model.
        size: as in `count_macs`.
    """
    model = countable_model(cfg)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, count_macs(model, size)


def countable_model(cfg: Config) -> Any:
    """Build the config's model on the meta device, without what needs values.

    Raises:
        UsageError: it cannot be built.
    """
    model: Any = build_on_meta(cfg)
    if hasattr(model, 'roi_head'):
        skip_selection_of_two_stages(
            model, cfg.model.test_cfg.rpn.max_per_img, cfg.model.test_cfg.rcnn.max_per_img
        )
    elif hasattr(model, 'bbox_head'):
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


def count_macs(model: nn.Module, size: Sequence[int]) -> int:
    """Count the multiply-accumulates of inference on one sample.

    Matrix products and convolutions count, including those inside scaled_dot_product_attention.

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
    # The counter does not support the CPU's fused attention; the MATH backend consists of products
    # that it counts.
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.torchvision.deform_conv2d: deform_conv2d_flops}
    )
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        if hasattr(model, 'bbox_head') or hasattr(model, 'roi_head'):
            model(sample, [image_metadata(size[0], size[1])], mode='predict')
        elif isinstance(model, BaseModel):
            model(sample, mode='tensor')
        else:
            model(sample)
    return counter.get_total_flops() // 2


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
