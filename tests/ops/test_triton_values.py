"""The attention kernels compared with the reference: error budgets, strides, offsets,
reproducibility.
"""

import os

import pytest
import torch

from mmpola.ops.numerics import BACKEND_EXCESS
from tests.helpers.attention import DEVICE, attend, draw_leaves, draw_rotary, results

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]


CASES = {
    'power': dict(dim=32, queries=70, keys=150, kind='power'),
    'power, one query': dict(dim=64, queries=1, keys=70, kind='power', position=False),
    'power, padded channels': dict(dim=40, queries=33, keys=20, kind='power without scale'),
    'power, one head': dict(dim=16, queries=20, keys=70, kind='power', heads=1, batch=3),
    'exp': dict(dim=64, queries=40, keys=70, kind='exp', heads=1),
    'exp, one key': dict(dim=32, queries=70, keys=1, kind='exp', position=False),
    'exp, rotary': dict(dim=32, queries=70, keys=70, kind='exp', position=False, heads=1),
    'exp, rotary, padded channels': dict(dim=40, queries=17, keys=17, kind='exp'),
}


@pytest.mark.usefixtures('poisoned_memory')
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
@pytest.mark.parametrize('name', CASES)
def test_error_stays_within_the_budget(name, dtype):
    """Output and every gradient against float64: the error of the same-dtype reference plus
    BACKEND_EXCESS.
    """
    case = CASES[name]
    check_error_budget(
        case, dtype, draw_rotary(case['queries'], case['dim']) if 'rotary' in name else None
    )


def check_error_budget(case, dtype, rotary=None):
    tensors, kind = draw_leaves(**case, dtype=dtype), case['kind']
    grad = torch.randn_like(tensors[0])
    kernel = results(tensors, kind, grad, rotary)
    same_dtype = results(tensors, kind, grad, rotary, 'torch')
    exact = results(tensors, kind, grad, rotary, 'torch', torch.float64)
    for what, expected in exact.items():
        # With one key the output is v for any q and k: gradients near zero are measured relative to
        # the incoming one.
        scale = max(expected.norm(), grad.double().norm() if case['keys'] == 1 else 0)
        errors = [
            float((found[what].double() - expected).norm() / scale)
            for found in (kernel, same_dtype)
        ]
        if os.environ.get('MMPOLA_PRINT_ERRORS'):
            print(f'ERR {dtype} {what:16} kernel {errors[0]:.1e} reference {errors[1]:.1e}')
        assert kernel[what].dtype == same_dtype[what].dtype
        assert errors[0] <= errors[1] + BACKEND_EXCESS[dtype][what != 'o'], what


def test_error_of_bfloat16_stays_within_the_budget():
    check_error_budget(CASES['power'], torch.bfloat16)


def test_error_of_float32_in_tf32_stays_within_tf32_noise(monkeypatch):
    """With torch's tf32 switch on: the figures in numerics.py, with the same margin."""
    monkeypatch.setattr('mmpola.ops.triton.passes.product_precision', lambda dtype: 'tf32')
    monkeypatch.setitem(BACKEND_EXCESS, torch.float32, (8e-4, 1e-3))
    check_error_budget(CASES['power'], torch.float32)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_results_are_reproducible_bit_for_bit(kind):
    tensors = draw_leaves(16, 70, 150, kind, torch.float16, heads=1)
    grad = torch.randn_like(tensors[0])
    first, second = (results(tensors, kind, grad) for _ in range(2))
    for what, found in first.items():
        assert torch.equal(found, second[what]), what


def test_weights_sum_to_one():
    """Factors are rounded to nearest: truncated ones make the sum too small by 1.1e-3 on
    average.
    """
    tensors = draw_leaves(32, 70, 150, 'power', torch.float16)
    tensors[2] = torch.ones_like(tensors[2])
    weights = attend(tensors, 'power', eps=0.0).float()
    assert (weights - 1).abs().max() <= 2**-10
    assert (weights - 1).mean().abs() < 1e-4


def test_a_nan_reaches_its_query_only():
    tensors = draw_leaves(16, 20, 20, 'power')
    tensors[0][0, 3, 1, 5] = float('nan')
    output = attend(tensors, 'power')
    assert output[0, 3, 1].isnan().all()
    assert output.isnan().sum() == 16


def test_strides_do_not_matter():
    _, _, _, _, *parameters = draw_leaves(16, 20, 20, 'power')
    packed = torch.randn(2, 20, 3, 2, 16, device=DEVICE)
    heads_first = packed.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    no_unit_stride = packed.transpose(3, 4).contiguous().transpose(3, 4)
    grad = torch.randn(2, 20, 1, 1, device=DEVICE).expand(2, 20, 2, 16)
    expected = None
    for layout in (packed, heads_first, no_unit_stride):
        q, k, v = layout.unbind(2)
        found = results([q, k, v, None, *parameters], 'power', grad)
        expected = expected or results(
            [*(x.contiguous() for x in (q, k, v)), None, *parameters], 'power', grad.clone()
        )
        for what, value in expected.items():
            assert torch.equal(found[what], value), what


@pytest.mark.usefixtures('overflow_checks')
@pytest.mark.parametrize(
    ('axis', 'stride'),
    [(0, 2**31 + 64), (0, 2**30 + 64), (1, 2**31 + 64), (2, 2**30 + 64)],
    ids=['batch', 'batch of 32-bit stride', 'tokens', 'heads of 32-bit stride'],
)
def test_offsets_beyond_32_bits(axis, stride):
    """Elements more than 2^31 from the first need 64-bit offsets. Only the rows themselves are
    touched in memory.
    """
    shape = [2, 20, 2, 16]
    shape[axis] = 1 + -(-(2**31) // stride)
    grad, *tensors = (torch.randn(shape, device=DEVICE).half() for _ in range(4))
    parameters = [None, 1 + 4 * torch.rand(shape[2], 16, device=DEVICE), None]
    storage = torch.empty(2**31 + 2**14, dtype=torch.float16, device=DEVICE)
    strides = list(grad.stride())
    strides[axis] = stride
    far = [storage.as_strided(shape, strides, i * grad.numel()) for i in range(4)]
    for view, x in zip(far, (grad, *tensors), strict=True):
        view.copy_(x)
    expected = results([*tensors, *parameters], 'power', grad)
    for what, found in results([*far[1:], *parameters], 'power', far[0]).items():
        assert torch.equal(found, expected[what]), what
