"""The compiled operators of mmcv, on torchvision's: what mmdet and mmseg need of `mmcv._ext`.

mmcv-lite has all Python files of mmcv and lacks one module, the compiled `mmcv._ext`. `import
mmpola`, or a file of `mmpola operators`, makes Python load this one in its place; a compiled mmcv
is used where there is one.
`mmcv/ops/*.py` calls these functions with the arguments of the compiled ones: most write their
results into tensors that the caller has allocated. Names that are missing here raise an error when
they are called.

All tensors of a call are on one device. float32 and float64 are computed as they are. float16 and
bfloat16, which several operators of torchvision lack, are computed in float32 and rounded once.

Sources: NMS, RoIAlign, deformable convolution: torchvision.ops. Soft-NMS: Bodla et al.,
ICCV 2017. Focal loss: Lin et al., ICCV 2017. Deformable attention: Zhu et al., ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from mmpola.openmmlab.install import versions_of

operators = torch.ops.torchvision

# methods of `softnms`
NAIVE = 0
LINEAR = 1
GAUSSIAN = 2

AVERAGE = 1
"""The pool mode of `roi_align_forward` that torchvision has."""


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises, for every operator that is not in this module.

    mmcv asks for all of its operators by name when it is imported, and calls few of them.
    """
    if name.startswith('__'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f'mmcv operator {name} needs the compiled mmcv: pip uninstall mmcv-lite; '
            f'pip install mmcv{versions_of("mmcv-lite")}'
        )

    return missing


def get_compiler_version() -> str:
    """Return what runs instead of compiled operators."""
    return f'none: torchvision {torchvision.__version__}'


def get_compiling_cuda_version() -> str:
    """Return the version of CUDA that torch and torchvision are built for."""
    return torch.version.cuda or 'not available'


def _computable(tensor: Tensor) -> Tensor:
    """Convert float16 and bfloat16 to float32."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices [K] of the boxes to keep, by descending score.

    Args:
        bboxes: x1, y1, x2, y2 [N, 4].
        scores: [N].
        iou_threshold: a box goes if it overlaps a better one by more.
        offset: 1 if a box ends with its last pixel, so that its width is x2 - x1 + 1; else 0.
    """
    ends = _computable(bboxes) + bboxes.new_tensor([0, 0, offset, offset])
    return operators.nms(ends.to(_computable(scores)), _computable(scores), iou_threshold)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Write boxes and their lowered scores into `dets` [N, 5]; return their indices [K], K <= N.

    Boxes of equal score may come in another order than from the compiled operator.

    Args:
        boxes: x1, y1, x2, y2 [N, 4].
        scores: [N].
        dets: the first K rows are written: x1, y1, x2, y2, score by descending score.
        iou_threshold: overlap from which `NAIVE` removes a box and `LINEAR` lowers its score.
        sigma: `GAUSSIAN` multiplies a score by exp(-IoU^2 / sigma).
        min_score: a box whose lowered score is less goes.
        method: `NAIVE`, `LINEAR` or `GAUSSIAN`.
        offset: as in `nms`.
    """
    boxes = _computable(boxes)
    ends = boxes[:, 2:] + offset
    sizes = ends - boxes[:, :2]
    areas = sizes[:, 0] * sizes[:, 1]
    scores = _computable(scores).clone()
    remaining = torch.arange(len(boxes), device=boxes.device)
    kept: list[Tensor] = []
    while len(remaining) > 0:
        best = scores[remaining].argmax()
        box = remaining[best]
        dets[len(kept), :4] = boxes[box]
        dets[len(kept), 4] = scores[box]
        kept.append(box)

        remaining = remaining[remaining != box]
        starts_of_overlaps = torch.maximum(boxes[box, :2], boxes[remaining, :2])
        ends_of_overlaps = torch.minimum(ends[box], ends[remaining])
        overlaps = (ends_of_overlaps - starts_of_overlaps).clamp(min=0)
        intersections = overlaps[:, 0] * overlaps[:, 1]
        ious = intersections / (areas[box] + areas[remaining] - intersections)
        if method == NAIVE:
            factors = torch.where(ious >= iou_threshold, 0.0, 1.0)
        elif method == LINEAR:
            factors = torch.where(ious >= iou_threshold, 1 - ious, 1.0)
        else:
            factors = torch.exp(-ious.square() / sigma)
        scores[remaining] *= factors
        remaining = remaining[scores[remaining] >= min_score]
    if not kept:
        return remaining
    return torch.stack(kept)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the average of the sampled values of each region into `output`.

    Args:
        input: maps [B, C, H, W].
        rois: index of the image, x1, y1, x2, y2 [R, 5] in pixels of the image.
        output: [R, C, aligned_height, aligned_width].
        argmax_y: not used by the average.
        argmax_x: not used by the average.
        aligned_height: rows of the output.
        aligned_width: columns of the output.
        spatial_scale: size of a map by the size of the image.
        sampling_ratio: samples per output pixel and axis; 0 for as many as the region has pixels.
        pool_mode: `AVERAGE`.
        aligned: whether coordinates are shifted by half a pixel, so that they are exact.

    Raises:
        NotImplementedError: `pool_mode` is the maximum, which torchvision lacks.
    """
    if pool_mode != AVERAGE:
        raise NotImplementedError("RoIAlign with pool_mode='max' needs the compiled mmcv")
    pooled = operators.roi_align(
        _computable(input),
        _computable(rois),
        spatial_scale,
        aligned_height,
        aligned_width,
        sampling_ratio,
        aligned,
    )
    output.copy_(pooled)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of the maps [B, C, H, W] into `grad_input`; see `roi_align_forward`."""
    batch, channels, height, width = grad_input.shape
    gradient = operators._roi_align_backward(
        _computable(grad_output),
        _computable(rois),
        spatial_scale,
        aligned_height,
        aligned_width,
        batch,
        channels,
        height,
        width,
        sampling_ratio,
        aligned,
    )
    grad_input.copy_(gradient)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of each logit into `output`.

    Args:
        input: logits [N, C].
        target: int64 classes [N]; C stands for the background.
        weight: factor of each class [C], or empty.
        output: [N, C].
        gamma: exponent of the modulating factor.
        alpha: weight of the positive logits; negative ones have 1 - alpha.
    """
    logits = _computable(input)
    positive = _is_target(target, logits)
    probability = logits.sigmoid()
    of_positive = -alpha * (1 - probability) ** gamma * F.logsigmoid(logits)
    of_negative = -(1 - alpha) * probability**gamma * F.logsigmoid(-logits)
    loss = torch.where(positive, of_positive, of_negative)
    output.copy_(_weighted(loss, target, weight))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of each loss by its logit into `grad_input` [N, C].

    With p = sigmoid(x), it is alpha (1 - p)^gamma (gamma p log p + p - 1) of a positive logit and
    (1 - alpha) p^gamma (p - gamma (1 - p) log(1 - p)) of a negative one.
    """
    logits = _computable(input)
    positive = _is_target(target, logits)
    p = logits.sigmoid()
    of_positive = alpha * (1 - p) ** gamma * (gamma * p * F.logsigmoid(logits) + p - 1)
    of_negative = (1 - alpha) * p**gamma * (p - gamma * (1 - p) * F.logsigmoid(-logits))
    gradient = torch.where(positive, of_positive, of_negative)
    grad_input.copy_(_weighted(gradient, target, weight))


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of each row into `output`.

    Args:
        input: probabilities [N, C]: mmcv passes the softmax of its logits.
        target: int64 classes [N]; the loss of a negative class is 0.
        weight: factor of each class [C], or empty.
        output: [N].
        gamma: exponent of the modulating factor.
        alpha: factor of the loss.
    """
    probability, log_probability = _probability_of_target(input, target)
    loss = -alpha * (1 - probability) ** gamma * log_probability
    loss = torch.where(target >= 0, loss, 0)
    output.copy_(_weighted(loss, target, weight))


def softmax_focal_loss_backward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    buff: Tensor,
    grad_input: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Write the gradient of the logits, whose softmax `input` is, into `grad_input` [N, C].

    `buff` [N] receives p dL/dp, where p is the probability of the target: the softmax passes it on
    as p dL/dp (1[class is target] - probability of the class).
    """
    probability, log_probability = _probability_of_target(input, target)
    modulation = (1 - probability) ** gamma
    slope = gamma * probability * (1 - probability) ** (gamma - 1) * log_probability
    factor = alpha * (slope - modulation)
    factor = _weighted(torch.where(target >= 0, factor, 0), target, weight)
    buff.copy_(factor)
    difference = _is_target(target, input).to(factor.dtype) - _computable(input)
    grad_input.copy_(factor[:, None] * difference)


def _is_target(target: Tensor, scores: Tensor) -> Tensor:
    """Return bool [N, C]: whether a class is the target [N] of its row."""
    classes = torch.arange(scores.shape[1], device=scores.device)
    return target[:, None] == classes


def _probability_of_target(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return probability and log-probability [N] of the targets, of class 0 where they are -1."""
    probabilities = _computable(input)
    probability = probabilities.gather(1, target.clamp(min=0)[:, None])[:, 0]
    smallest = torch.finfo(probability.dtype).tiny
    return probability, probability.clamp(min=smallest).log()


def _weighted(values: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Multiply each row of values [N] or [N, C] by the weight of its class, if there is any."""
    if weight.numel() == 0:
        return values
    factors = weight[target].to(values.dtype)
    if values.dim() == 2:
        factors = factors[:, None]
    return values * factors


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Return deformable attention [B, Q, heads * D], computed by mmcv's own PyTorch function.

    Args:
        value: [B, sum of H * W over the levels, heads, D].
        value_spatial_shapes: int64 height and width of each level [levels, 2].
        value_level_start_index: not needed.
        sampling_locations: x, y from 0 to 1 [B, Q, heads, levels, points, 2].
        attention_weights: [B, Q, heads, levels, points].
        im2col_step: not needed.
    """
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    # The caller has chosen the dtype; autocast would return another one.
    with torch.autocast(value.device.type, enabled=False):
        output = multi_scale_deformable_attn_pytorch(
            _computable(value),
            value_spatial_shapes,
            _computable(sampling_locations),
            _computable(attention_weights),
        )
    return output.to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Write the gradients of value, locations and weights; the forward pass is run again."""
    inputs = []
    for tensor in (value, sampling_locations, attention_weights):
        inputs.append(_computable(tensor).detach().requires_grad_())
    with torch.enable_grad():
        output = ms_deform_attn_forward(
            inputs[0],
            value_spatial_shapes,
            value_level_start_index,
            inputs[1],
            inputs[2],
            im2col_step,
        )
    gradients = torch.autograd.grad(output, inputs, grad_output.to(output.dtype))
    grad_value.copy_(gradients[0])
    grad_sampling_loc.copy_(gradients[1])
    grad_attn_weight.copy_(gradients[2])


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,  # noqa: N803  mmcv's names
    kH: int,  # noqa: N803
    dW: int,  # noqa: N803
    dH: int,  # noqa: N803
    padW: int,  # noqa: N803
    padH: int,  # noqa: N803
    dilationW: int,  # noqa: N803
    dilationH: int,  # noqa: N803
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Write a deformable convolution (version 1: no mask, no bias) into `output`.

    Args:
        input: maps [B, C, H, W].
        weight: [O, C / group, kH, kW].
        offset: y and x of each tap [B, deformable_group * kH * kW * 2, H', W'].
        output: [B, O, H', W'].
        columns: not needed.
        ones: not needed.
        kW: width of the kernel.
        kH: height of the kernel.
        dW: horizontal stride.
        dH: vertical stride.
        padW: horizontal padding.
        padH: vertical padding.
        dilationW: horizontal dilation.
        dilationH: vertical dilation.
        group: groups of channels.
        deformable_group: groups of channels with the same offsets.
        im2col_step: not needed.
    """
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    output.copy_(_deform_conv(input, weight, offset, None, None, geometry))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,  # noqa: N803
    kH: int,  # noqa: N803
    dW: int,  # noqa: N803
    dH: int,  # noqa: N803
    padW: int,  # noqa: N803
    padH: int,  # noqa: N803
    dilationW: int,  # noqa: N803
    dilationH: int,  # noqa: N803
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Write the gradients of maps and offsets; see `deform_conv_forward`."""
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    gradients = _deform_conv_gradients(grad_output, input, weight, offset, None, geometry)
    grad_input.copy_(gradients[0])
    grad_offset.copy_(gradients[2])


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,  # noqa: N803
    kH: int,  # noqa: N803
    dW: int,  # noqa: N803
    dH: int,  # noqa: N803
    padW: int,  # noqa: N803
    padH: int,  # noqa: N803
    dilationW: int,  # noqa: N803
    dilationH: int,  # noqa: N803
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> None:
    """Write the gradient of the weights, times `scale`; see `deform_conv_forward`."""
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    # A convolution is linear in its weights: their gradient is the same at any weights.
    weight = torch.zeros_like(grad_weight)
    gradients = _deform_conv_gradients(grad_output, input, weight, offset, None, geometry)
    grad_weight.copy_(gradients[1] * scale)


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Write a deformable convolution of version 2 into `output`; see `deform_conv_forward`.

    `mask` [B, deformable_group * kernel_h * kernel_w, H', W'] has a factor for each tap, `bias` [O]
    is added if `with_bias`.

    `offset` and `mask` may be larger than the output, see `_leading_numbers`.

    Raises:
        ValueError: one of them is smaller.
    """
    taps = deformable_group * kernel_h * kernel_w
    size = output.shape[2:]
    offset = _leading_numbers('offset', offset, (2 * taps, *size))
    mask = _leading_numbers('mask', mask, (taps, *size))
    geometry = (
        stride_h,
        stride_w,
        pad_h,
        pad_w,
        dilation_h,
        dilation_w,
        group,
        deformable_group,
    )
    bias_or_none = bias if with_bias else None
    output.copy_(_deform_conv(input, weight, offset, mask, bias_or_none, geometry))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Write all gradients of `modulated_deform_conv_forward`; 0 for unread numbers."""
    taps = deformable_group * kernel_h * kernel_w
    size = grad_output.shape[2:]
    offset = _leading_numbers('offset', offset, (2 * taps, *size))
    mask = _leading_numbers('mask', mask, (taps, *size))
    geometry = (
        stride_h,
        stride_w,
        pad_h,
        pad_w,
        dilation_h,
        dilation_w,
        group,
        deformable_group,
    )
    gradients = _deform_conv_gradients(grad_output, input, weight, offset, mask, geometry)
    grad_input.copy_(gradients[0])
    grad_weight.copy_(gradients[1])
    grad_offset.copy_(_followed_by_zeros(gradients[2], grad_offset))
    grad_mask.copy_(_followed_by_zeros(gradients[3], grad_mask))
    if with_bias:
        grad_bias.copy_(gradients[4])


def _deform_conv(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    geometry: tuple[int, ...],
) -> Tensor:
    """Return torchvision's deformable convolution, without mask and bias if they are None."""
    has_mask = mask is not None
    if mask is None:
        mask = _no_mask(input)
    if bias is None:
        bias = input.new_zeros(len(weight))
    return operators.deform_conv2d(
        _computable(input),
        _computable(weight),
        _computable(offset),
        _computable(mask),
        _computable(bias),
        *geometry,
        has_mask,
    )


def _deform_conv_gradients(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    geometry: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight, offset, mask and bias."""
    has_mask = mask is not None
    if mask is None:
        mask = _no_mask(input)
    return operators._deform_conv2d_backward(
        _computable(grad_output),
        _computable(input),
        _computable(weight),
        _computable(offset),
        _computable(mask),
        _computable(input.new_zeros(len(weight))),
        *geometry,
        has_mask,
    )


def _no_mask(input: Tensor) -> Tensor:
    """Return the mask that torchvision passes where there is none."""
    return input.new_zeros((len(input), 1))


def _leading_numbers(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the first numbers of each sample of `tensor` [B, …] as [B, *shape].

    mmcv's kernel takes them in the order of memory and does not look at the size of the map. DyHead
    and GLIP pass offsets and masks of a finer level, and their published weights were trained so.
    """
    if tensor.shape[1:] == shape:
        return tensor
    count = math.prod(shape)
    numbers = tensor.flatten(1)
    if numbers.shape[1] < count:
        got = list(tensor.shape[1:])
        raise ValueError(f'{name}: expected at least {list(shape)} per sample, got {got}')
    return numbers[:, :count].unflatten(1, shape)


def _followed_by_zeros(gradient: Tensor, whole: Tensor) -> Tensor:
    """Return the gradient of `_leading_numbers` [B, …] in the shape of the `whole` tensor."""
    numbers = gradient.flatten(1)
    unread = whole.shape[1:].numel() - numbers.shape[1]
    return F.pad(numbers, (0, unread)).reshape(whole.shape)
