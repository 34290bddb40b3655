"""The values of the kernels: errors within the budget, any strides and offsets, NaN, zeros."""

import pytest
import torch

from mmpola.kernels import check
from mmpola.ops import mix_and_gate
from tests.helpers.attention import DEVICE, attend, draw_leaves, results

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]

POWER = {'feature_map': 'PowerMap', 'batch': 2, 'heads': 2}
EXP = {'feature_map': 'ExpMap', 'batch': 2, 'heads': 2}
ROTARY = EXP | {'has_rotary': True}
ONE_HEAD = {'batch': 1, 'heads': 1}
MIX = {'batch': 1, 'heads': 2, 'is_shared': True, 'window': (3, 3)}
OWN_TAPS = MIX | {'is_shared': False}

CASES = {
    'power': (32, POWER | {'queries': 70, 'keys': 150}),
    'power, one query': (64, POWER | {'queries': 1, 'keys': 70, 'position_dtype': None}),
    'power, padded channels': (40, POWER | {'queries': 33, 'keys': 20, 'has_scale': False}),
    'power, one head': (16, POWER | {'queries': 20, 'keys': 70, 'batch': 3, 'heads': 1}),
    'exp': (64, EXP | {'queries': 40, 'keys': 70, 'heads': 1}),
    'rotary': (32, ROTARY | {'queries': 70, 'keys': 70, 'heads': 1, 'position_dtype': None}),
    'rotary, padded channels': (40, ROTARY | {'queries': 17, 'keys': 17}),
    'one token': (16, OWN_TAPS | {'grid': (1, 1), 'window': (5, 5)}),
    'a row': (16, MIX | {'grid': (1, 37), 'window': (5, 5), 'heads': 1}),
    'a column': (16, MIX | {'grid': (19, 1)}),
    'less than a tile': (40, MIX | {'grid': (5, 3), 'window': (5, 5), 'heads': 1}),
    'several tiles': (16, OWN_TAPS | {'grid': (9, 18), 'has_bias': False}),
    'a kernel wider than the grid': (16, MIX | {'grid': (2, 3), 'window': (7, 7), 'heads': 1}),
    'several blocks of channels': (64, OWN_TAPS | {'grid': (4, 5)}),
    'one channel': (1, MIX | {'grid': (3, 3), 'heads': 3}),
    'a sequence': (16, MIX | {'grid': (1, 300), 'window': (1, 5), 'heads': 1}),
    'a sequence shorter than its kernel': (16, OWN_TAPS | {'grid': (1, 2), 'window': (1, 5)}),
    'a tap': (16, MIX | {'grid': (4, 5), 'window': (1, 1), 'batch': 2}),
}
"""Name -> head dimension and arguments of a problem."""


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [
        *((name, dtype) for name in CASES for dtype in ('float16', 'float32')),
        *((name, 'bfloat16') for name in ('power', 'exp', 'less than a tile')),
        ('power', 'float32 in tf32'),
    ],
)
def test_results_are_reproducible_and_within_the_budget(name, dtype):
    """Output and every gradient, twice with equal bits, in memory full of NaN."""
    dim, arguments = CASES[name]
    row = check.check(torch.device(DEVICE), dtype, dim, arguments, allowed=1)
    assert row['failure'] == ''


def test_strides_of_attention_do_not_matter():
    _, _, _, _, *parameters = draw_leaves(16, 20, 20, 'power')
    grad = torch.randn(2, 20, 1, 1, device=DEVICE).expand(2, 20, 2, 16)
    expected = None
    for layout in layouts(torch.randn(2, 20, 3, 2, 16, device=DEVICE)):
        q, k, v = layout.unbind(2)
        if expected is None:
            tensors = [x.contiguous() for x in (q, k, v)]
            expected = results([*tensors, None, *parameters], 'power', grad.clone())
        found = results([q, k, v, None, *parameters], 'power', grad)
        for what, value in expected.items():
            assert torch.equal(found[what], value), what


def test_strides_of_mix_and_gate_do_not_matter():
    weight = torch.randn(16, 1, 3, 3, device=DEVICE)
    wide = weight.repeat(1, 2, 1, 1).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(2, 15, 1, device=DEVICE).expand(2, 15, 32)
    expected = None
    for layout in layouts(torch.randn(2, 15, 3, 2, 16, device=DEVICE)):
        attended, values, gate = layout.unbind(2)
        gate = gate.flatten(2)
        if layout.stride(-1) > 1:
            gate = gate.mT.contiguous().mT
        tensors = [attended, values, gate, wide[:, :1]]
        if expected is None:
            contiguous = [attended.contiguous(), values.contiguous(), gate.contiguous(), weight]
            expected = mixed(contiguous, grad.clone())
        for found, value in zip(mixed(tensors, grad), expected, strict=True):
            assert torch.equal(found, value)


def layouts(packed):
    """Return a packed projection [B, N, 3, H, D]: as it is, heads first, without unit stride."""
    heads_first = packed.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    no_unit_stride = packed.transpose(3, 4).contiguous().transpose(3, 4)
    return packed, heads_first, no_unit_stride


def mixed(tensors, grad):
    """Return output and gradients of `mix_and_gate` on a map of 5 x 3."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    output = mix_and_gate(*leaves, None, (5, 3), backend='triton')
    return [output, *torch.autograd.grad(output, leaves, grad)]


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


def test_a_nan_reaches_its_query_only():
    tensors = draw_leaves(16, 20, 20, 'power')
    tensors[0][0, 3, 1, 5] = float('nan')
    output = attend(tensors, 'power')
    assert output[0, 3, 1].isnan().all()
    assert output.isnan().sum() == 16


def test_a_nan_reaches_its_neighbours_only():
    values = torch.randn(2, 72, 2, 16, device=DEVICE)
    values[0, 0, 1, 5] = float('nan')
    gate = torch.ones(2, 72, 32, device=DEVICE)
    weight = torch.randn(16, 1, 3, 3, device=DEVICE)
    output = mix_and_gate(
        gate.view_as(values), values, gate, weight, None, (6, 12), backend='triton'
    )
    assert output[0, :, 16 + 5].unflatten(0, (6, 12))[:2, :2].isnan().all()
    assert output.isnan().sum() == 4


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_a_nan_in_the_incoming_gradient_is_kept(kind):
    """A gradient scaler must see it: rounding to tf32 may not turn it into a number."""
    tensors = draw_leaves(16, 20, 20, kind, torch.float16, position=False)
    grad = torch.randn_like(tensors[0])
    grad[0, 3, 1, 5] = float('nan')
    found = results(tensors, kind, grad)
    assert found['q'][0, 3, 1].isnan().all()
    assert found['q'].isnan().sum() == 16
    assert found['v'][0, :, 1, 5].isnan().all()
    for what in ('k', 'v', 'parameter'):
        assert found[what][..., 1, :].isnan().any()
        assert not found[what][..., 0, :].isnan().any()


@pytest.mark.parametrize(
    ('kind', 'exponent'),
    [('power', None), ('power', 1.001), ('power', 1.0), ('power', 0.5), ('exp', None)],
)
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_gradients_at_zero_are_zero(kind, exponent, dtype):
    tensors = draw_leaves(16, 20, 20, kind, dtype, position=False, heads=1)
    tensors[0][:, 0] = 0
    tensors[1][:, 0] = 0
    if exponent is not None:
        tensors[4].fill_(exponent)
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what in ('q', 'k'):
        assert found[what][:, 0].abs().max() == 0
        if dtype == torch.float32:  # half precision may underflow
            assert found[what][:, 1:].abs().min() > 0
    assert torch.isfinite(found['parameter']).all()


@pytest.mark.usefixtures('hardware_tf32')
@pytest.mark.parametrize('exponent', [1.0, 0.5])
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_exponents_of_one_and_below_are_exact_next_to_zeros(exponent, dtype):
    leaves = draw_leaves(16, 20, 30, 'power', dtype, position=False)
    leaves[0].relu_()
    leaves[1].relu_()
    leaves[4].fill_(exponent)
    grad = torch.randn_like(leaves[0])
    found = results(leaves, 'power', grad)
    exact = results(leaves, 'power', grad, backend='torch', dtype=torch.float64)
    for what, x in exact.items():
        error = (found[what].double() - x).norm() / x.norm()
        assert error < (1e-2 if dtype == torch.float16 else 2e-5), what


@pytest.mark.usefixtures('hardware_tf32')
@pytest.mark.parametrize(
    ('dtype', 'tolerance'),
    [(torch.float16, 2e-3), (torch.bfloat16, 1e-2), (torch.float32, 1e-3)],
    ids=['fp16', 'bf16', 'fp32'],
)
def test_a_channel_that_dominates_the_queries_leaves_no_noise(dtype, tolerance):
    """Nearly all of the gradients of q and of the scale cancels, but what is left is right."""
    leaves = draw_leaves(16, 20, 30, 'power', dtype, position=False)
    leaves[1][..., 5] *= 1000
    leaves[4].fill_(3.0)
    grad = torch.randn_like(leaves[0])
    found = results(leaves, 'power', grad)
    exact = results(leaves, 'power', grad, backend='torch', dtype=torch.float64)
    for what in ('q', 'other parameter'):
        error = (found[what].double() - exact[what]).norm() / exact[what].norm()
        assert error < tolerance, what
