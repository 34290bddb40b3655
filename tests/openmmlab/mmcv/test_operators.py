"""mmcv without its compiled module: `mmpola.openmmlab.mmcv.operators` takes its place.

The compiled operators' results were recorded, see tests/helpers/mmcv_cases.py.
"""

from functools import partial

import numpy as np
import pytest
import torch
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck
from torch.torch_version import TorchVersion

from mmpola.openmmlab.mmcv import operators as mmcv_operators
from tests.helpers import mmcv_cases

LEVELS = ((4, 5), (2, 3))
HALF = (torch.float16, torch.bfloat16)

pytestmark = pytest.mark.skipif(
    not ops.get_compiler_version().startswith('none'),
    reason='mmcv is compiled in this environment',
)


@pytest.fixture(scope='module')
def record():
    return torch.load(mmcv_cases.RECORD, weights_only=True)


def test_operators_equal_the_compiled_ones(record):
    found = mmcv_cases.operators()
    assert found.keys() == record['operators'].keys()
    for name, expected in record['operators'].items():
        for i, (ours, theirs) in enumerate(zip(found[name], expected, strict=True)):
            # The same arithmetic in another order.
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-5, msg=f'{name} {i}')


@pytest.mark.slow
@pytest.mark.parametrize('name', mmcv_cases.STEPS)
def test_a_step_equals_that_of_a_compiled_mmcv(name, record):
    found = mmcv_cases.step(name)
    expected = record['steps'][name]
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=2e-4, atol=1e-6, msg=f'{name} {key}')


def deformable_inputs(dtype=torch.float64, device='cpu'):
    """Return value, locations and weights of deformable attention on `LEVELS`."""
    tokens = sum(height * width for height, width in LEVELS)
    value = torch.randn(2, tokens, 2, 4, dtype=dtype, device=device)
    locations = torch.rand(2, 3, 2, len(LEVELS), 2, 2, dtype=dtype, device=device)
    weights = torch.rand(2, 3, 2, len(LEVELS), 2, dtype=dtype, device=device)
    return value, locations, weights


def deformable_attention(value, locations, weights):
    shapes = torch.tensor(LEVELS)
    starts = torch.tensor([0, 20])
    return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)


def gradient_cases():
    """Return name -> function and float64 inputs, of what is not recorded."""
    logits = torch.randn(5, 4, dtype=torch.float64)
    target = torch.tensor([0, 3, 4, 1, 2])  # class 4 is the background
    rows = torch.tensor([0, 3, 1, 1, 2])
    weight = torch.rand(4, dtype=torch.float64)
    return {
        'sigmoid': (
            lambda x: ops.sigmoid_focal_loss(x, target, 2.0, 0.25, None, 'none'),
            (logits,),
        ),
        'softmax': (
            lambda x: ops.softmax_focal_loss(x, rows, 2.0, 0.25, weight, 'sum'),
            (logits,),
        ),
        'attention': (deformable_attention, deformable_inputs()),
    }


@pytest.mark.parametrize('name', gradient_cases())
def test_gradients(name):
    function, inputs = gradient_cases()[name]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    assert gradcheck(function, inputs, eps=1e-6, atol=1e-5)


def test_the_memory_format_of_a_finer_offset_and_mask_changes_nothing():
    """They are read from their start, see 'dcn v2 finer' of the record."""
    maps = torch.randn(2, 4, 9, 10)
    weight = torch.randn(6, 4, 3, 3)
    offset = torch.randn(2, 18, 9, 10)
    mask = torch.rand(2, 9, 9, 10)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        finer = [x.clone(memory_format=layout).requires_grad_() for x in (offset, mask)]
        output = ops.modulated_deform_conv2d(maps, *finer, weight, None, 2, 1)
        found.append([output, *torch.autograd.grad(output.square().sum(), finer)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_coarser_offset_or_mask_is_refused():
    inputs = [torch.randn(1, 4, 5, 5), torch.randn(1, 18, 5, 5), torch.rand(1, 9, 5, 5)]
    weight = torch.randn(2, 4, 3, 3)
    for index, name in ((1, 'offset'), (2, 'mask')):
        coarser = list(inputs)
        coarser[index] = inputs[index][:, :, :4]
        with pytest.raises(ValueError, match=f'^{name}: expected at least .* per sample, got '):
            ops.modulated_deform_conv2d(*coarser, weight, None, 1, 1)


def test_focal_losses_follow_their_definition():
    logits = torch.randn(7, 4)
    target = torch.tensor([0, 1, 2, 3, 4, 4, 1])
    one_hot = torch.nn.functional.one_hot(target, 5)[:, :4]
    expected = py_sigmoid_focal_loss(logits, one_hot, gamma=2.0, alpha=0.25, reduction='none')
    found = ops.sigmoid_focal_loss(logits, target, 2.0, 0.25, None, 'none')
    torch.testing.assert_close(found, expected)

    weight = torch.rand(4)
    rows = target[[0, 1, 2, 3, 6]]
    p = logits[:5].softmax(dim=1)[torch.arange(5), rows]
    expected = -0.25 * (1 - p) ** 2 * p.log() * weight[rows]
    found = ops.softmax_focal_loss(logits[:5], rows, 2.0, 0.25, weight, 'none')
    torch.testing.assert_close(found, expected)


def test_deformable_attention_is_mmcv_s():
    value, locations, weights = deformable_inputs()
    found = deformable_attention(value, locations, weights)
    expected = multi_scale_deformable_attn_pytorch(value, LEVELS, locations, weights)
    assert torch.equal(found, expected)


@pytest.mark.parametrize('dtype', HALF)
def test_half_precision_rounds_once(dtype):
    maps, regions = mmcv_cases.maps_and_regions()
    maps = maps.to(dtype)
    regions = regions.to(dtype)
    exact = ops.roi_align(maps.float(), regions.float(), 5, 0.25)
    assert torch.equal(ops.roi_align(maps, regions, 5, 0.25), exact.to(dtype))

    inputs = deformable_inputs(dtype)
    exact = deformable_attention(*[tensor.float() for tensor in inputs])
    assert torch.equal(deformable_attention(*inputs), exact.to(dtype))

    boxes, scores, _ = mmcv_cases.boxes_and_scores()
    _, kept = ops.nms(boxes.to(dtype), scores.to(dtype), 0.5)
    _, expected = ops.nms(boxes.to(dtype).float(), scores.to(dtype).float(), 0.5)
    assert torch.equal(kept, expected)


@pytest.mark.parametrize('dtype', HALF)
def test_autocast_keeps_the_dtype_of_the_inputs(dtype):
    """As the compiled operators do, and autocast does with its own operators otherwise."""
    maps, regions = mmcv_cases.maps_and_regions()
    maps = maps.to(dtype).requires_grad_()
    value, locations, weights = deformable_inputs(torch.float32)
    value = value.to(dtype)
    with torch.autocast('cpu', dtype=dtype):
        pooled = ops.roi_align(maps, regions.to(dtype), 5, 0.25)
        attended = deformable_attention(value, locations, weights)
        loss = ops.sigmoid_focal_loss(value[0, :, 0], torch.zeros(26, dtype=torch.long))
    pooled.sum().backward()
    assert {pooled.dtype, attended.dtype, loss.dtype, maps.grad.dtype} == {dtype}


def test_no_boxes_and_one_box():
    none = torch.zeros(0, 4)
    one = torch.tensor([[1.0, 2, 5, 6]])
    for suppress in (partial(ops.nms, iou_threshold=0.5), ops.soft_nms):
        assert suppress(none, torch.zeros(0))[0].shape == (0, 5)
        detections, kept = suppress(one, torch.tensor([0.5]))
        assert detections.tolist() == [[1, 2, 5, 6, 0.5]]
        assert kept.tolist() == [0]
    detections, kept = ops.nms(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5)
    assert isinstance(detections, np.ndarray)
    assert len(kept) == 0


def test_no_regions():
    maps, regions = mmcv_cases.maps_and_regions()
    maps.requires_grad_()
    pooled = ops.roi_align(maps, regions[:0], 7, 0.25)
    assert pooled.shape == (0, 3, 7, 7)
    pooled.sum().backward()
    assert torch.equal(maps.grad, torch.zeros_like(maps))


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < '2.11',
    reason='torch 2.6 initialises CUDA for fake CUDA tensors',
)
def test_operators_run_on_a_gpu():
    """Fake tensors on a GPU, which need none: devices, shapes and dtypes fit.

    The gradient of deformable attention is autograd's, which needs a real one.
    """
    options = {'device': 'cuda', 'dtype': torch.float16}
    empty = partial(torch.empty, **options)
    with FakeTensorMode(), torch.no_grad():
        attended = mmcv_operators.ms_deform_attn_forward(
            deformable_inputs(**options)[0], LEVELS, None, *deformable_inputs(**options)[1:], 64
        )
        assert attended.shape == (2, 3, 8)
        assert attended.dtype == torch.float16
        assert attended.device.type == 'cuda'

        logits = empty(5, 4)
        target = torch.zeros(5, device='cuda', dtype=torch.long)
        weight = empty(4)
        for name, losses in (('sigmoid', empty(5, 4)), ('softmax', empty(5))):
            forward = getattr(mmcv_operators, f'{name}_focal_loss_forward')
            forward(logits, target, weight, losses, 2.0, 0.25)
        mmcv_operators.sigmoid_focal_loss_backward(logits, target, weight, empty(5, 4), 2.0, 0.25)
        mmcv_operators.softmax_focal_loss_backward(
            logits, target, weight, empty(5), empty(5, 4), 2.0, 0.25
        )

        maps = empty(2, 4, 20, 24)
        pooled = empty(6, 4, 7, 7)
        regions = empty(6, 5)
        align = (None, None, 7, 7, 0.25, 0, mmcv_operators.AVERAGE, True)
        mmcv_operators.roi_align_forward(maps, regions, pooled, *align)
        mmcv_operators.roi_align_backward(pooled, regions, *align[:2], maps, *align[2:])

        kernel = empty(6, 4, 3, 3)
        offset = empty(2, 18, 20, 24)
        output = empty(2, 6, 20, 24)
        geometry = (3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
        mmcv_operators.deform_conv_forward(
            maps, kernel, offset, output, None, None, *geometry, im2col_step=2
        )
        mmcv_operators.deform_conv_backward_input(
            maps, offset, output, maps, offset, kernel, None, *geometry, im2col_step=2
        )
        mmcv_operators.deform_conv_backward_parameters(
            maps, offset, output, kernel, None, None, *geometry, scale=1, im2col_step=2
        )


def test_other_operators_name_themselves():
    boxes = torch.rand(3, 5)
    with pytest.raises(NotImplementedError, match='box_iou_rotated needs the compiled mmcv'):
        ops.box_iou_rotated(boxes, boxes)
    maps, regions = mmcv_cases.maps_and_regions()
    with pytest.raises(NotImplementedError, match="pool_mode='max' needs the compiled mmcv"):
        ops.roi_align(maps, regions, 7, 0.25, 0, 'max')
    # torchvision's rounds the corners of a region otherwise
    with pytest.raises(NotImplementedError, match='roi_pool_forward needs the compiled mmcv'):
        ops.roi_pool(maps, regions, 7, 0.25)
