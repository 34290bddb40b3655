"""Count parameters and multiply-accumulates of a config's model, for the tables of models.

The model runs on the meta device, which takes no time, or on the CPU if it reads values. Region
pooling and non-maximum suppression depend on values, contribute no multiply-accumulates and are
left out: region heads get as many proposals, and mask heads as many boxes, as the config keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torchvision  # noqa: F401 registers deform_conv2d
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmpola.messages import UsageError, first_line
from mmpola.openmmlab.config.build import build_model, unwrapped
from mmpola.openmmlab.config.contents import input_channels, type_name


def count_model(cfg: Config, size: Sequence[int]) -> tuple[int, int]:
    """Return (parameters, multiply-accumulates of inference on one sample).

    Args:
        cfg: config of the model.
        size: as in `count_macs`.

    Raises:
        UsageError: the model cannot be built, or not be run on one sample.
    """
    try:
        with torch.device('meta'):
            return _count(cfg, size)
    except Exception:  # a constructor or a forward pass reads values, or there is a mistake
        pass
    try:
        return _count(cfg, size)
    except UsageError:
        raise
    except Exception as error:  # of any model of other packages
        raise UsageError(
            f'model: {type_name(cfg.model.type)} cannot be counted on one sample of {list(size)}: '
            f'{first_line(error)}'
        ) from error


def _count(cfg: Config, size: Sequence[int]) -> tuple[int, int]:
    model = unwrapped(build_model(cfg)).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, count_macs(model, size, input_channels(cfg.model))


def run_two_stage_detector(model: Any, images: Tensor) -> None:
    """Run a detector without non-maximum suppression and region pooling."""
    maps = model.extract_feat(images)
    model.rpn_head(maps)
    heads = model.roi_head
    proposals = model.test_cfg.rpn.max_per_img
    run_on_pooled(heads.bbox_roi_extractor, heads.bbox_head, proposals)
    if heads.with_mask:
        boxes = model.test_cfg.rcnn.max_per_img
        run_on_pooled(heads.mask_roi_extractor, heads.mask_head, boxes)


def run_on_pooled(extractors: Any, heads: Any, number: int) -> None:
    """Run the heads of all stages on `number` regions of the size that RoIAlign gives."""
    if not isinstance(heads, nn.ModuleList):  # a cascade has several stages
        extractors = [extractors]
        heads = [heads]
    for extractor, head in zip(extractors, heads, strict=True):
        height, width = extractor.roi_layers[0].output_size
        device = next(head.parameters()).device
        head(torch.zeros(number, extractor.out_channels, height, width, device=device))


def count_macs(model: nn.Module, size: Sequence[int], channels: int = 3) -> int:
    """Count the multiply-accumulates of inference on one sample.

    Matrix products and convolutions count, including those inside scaled_dot_product_attention.

    Args:
        model: a model of images or of sequences.
        size: (height, width) of an image in pixels, or (tokens,) of a sequence.
        channels: of the image.
    """
    device = next(model.parameters()).device
    is_sequence = len(size) == 1
    if is_sequence:
        sequences = 2 if getattr(model, 'paired', False) else 1
        sample = torch.zeros(sequences, size[0], device=device, dtype=torch.long)
    else:
        sample = torch.zeros(1, channels, size[0], size[1], device=device)
    # The counter does not support the CPU's fused attention; the MATH backend consists of products
    # that it counts.
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.torchvision.deform_conv2d: deform_conv2d_flops}
    )
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        if hasattr(model, 'roi_head'):
            run_two_stage_detector(model, sample)
        elif isinstance(model, BaseModel):
            model(sample, data_samples=[_sample_of(size)], mode='tensor')
        else:
            model(sample)
    return counter.get_total_flops() // 2


def _sample_of(size: Sequence[int]) -> BaseDataElement:
    """Return what DETR-like models read of an image: its size, without padding."""
    shape = tuple(size)
    return BaseDataElement(metainfo={'img_shape': shape, 'batch_input_shape': shape})


def deform_conv2d_flops(
    _image: Sequence[int], weight: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    """Count a deformable convolution like an ordinary one, without interpolation."""
    return 2 * prod(weight[1:]) * prod(out_shape)
