"""Queries and keys whose powers and exponentials overflow the dtype: results are finite and correct
to rounding, with every backend.
"""

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from mmpola.ops import ExpMap, PowerMap, exp_map, polarity_attention
from tests.helpers.attention import (
    DEVICE,
    MAPS,
    draw,
    exponential_attention,
    magnitude_of_terms,
    make_map,
    rotary_tables,
)

pytestmark = pytest.mark.usefixtures('hardware_tf32')

BOTH = pytest.mark.parametrize(
    'backend', ['torch', pytest.param('triton', marks=pytest.mark.kernels)]
)


TRITON = pytest.param('triton', False, marks=pytest.mark.kernels)
EACH_WAY = [('torch', False), ('torch', True), TRITON]
"""Backend, and whether its gradients can be differentiated again."""


def draw_tensors(kind, **sizes):
    """Draw q, k, v and the two parameters of a map, which are float32."""
    shape = {'heads': sizes.get('heads', 3), 'dim': sizes.get('dim', 4)}
    parameters = make_map(kind, **shape, dtype=torch.float32).parameters()
    return [*draw(**sizes), *parameters.values()]


def attend(tensors, kind, backend, **options):
    """Compute o from the tensors of `draw_tensors` on the device of a backend."""
    device = DEVICE if backend == 'triton' else 'cpu'
    q, k, v, *parameters = [None if x is None else x.to(device) for x in tensors]
    feature_map = ExpMap(*parameters) if kind == 'exp' else PowerMap(*parameters)
    return polarity_attention(q, k, v, feature_map, backend=backend, **options).cpu()


def with_gradients(function, tensors, grad, dtype=None, **options):
    """Return output and gradients of a function of tensors, perhaps in another dtype."""
    leaves = [x.detach().to(dtype or x.dtype, copy=True).requires_grad_() for x in tensors]
    output = function(leaves)
    return [output, *torch.autograd.grad(output, leaves, grad.to(output), **options)]


def assert_within(found, expected, tolerance):
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


def exact_exponentials(tensors):
    return exponential_attention(*tensors)


def power_attention(tensors, eps=1e-6):
    """Compute E4-E8 and E1-E3 as printed in float64, where |x|^p of large x does not overflow."""
    q, k, v, exponent, scale = (x.double() for x in tensors)
    (plus, minus), psi = (
        [(sign * x / scale).relu() ** exponent for sign in (1, -1)] for x in (q, k)
    )
    outputs = []
    for phi, half in zip(([plus, minus], [minus, plus]), v.chunk(2, dim=-1), strict=True):
        products = torch.einsum('bnhd,bmhd->bhnm', torch.cat(phi, dim=-1), torch.cat(psi, dim=-1))
        products = products / k.shape[1]
        weights = products / (products.sum(-1, keepdim=True) + eps)
        outputs.append(torch.einsum('bhnm,bmhd->bnhd', weights, half))
    return torch.cat(outputs, dim=-1)


# ---- Exponentials in range, which the backend `torch` computes without a shift


@pytest.mark.parametrize('with_rotary', [False, True])
def test_a_shift_changes_nothing(with_rotary, monkeypatch):
    """Exponentials in range are computed directly (E9); the shift of E11-E13 gives the same."""
    leaves = [x.requires_grad_() for x in (*draw(keys=5), *make_map('exp').parameters().values())]
    tables = rotary_tables(5, 4) if with_rotary else None
    grad = torch.randn(2, 5, 3, 4, dtype=torch.float64)

    def derivatives():
        output = polarity_attention(*leaves[:3], ExpMap(*leaves[3:]), rotary=tables)
        recorded = torch.autograd.grad(output, leaves, grad, create_graph=True)
        first = torch.autograd.grad(output, leaves, grad)
        second = torch.autograd.grad(recorded[0].square().sum(), leaves)
        return output, *first, *second

    directly = derivatives()
    monkeypatch.setattr(exp_map, 'UNSHIFTED_LIMIT', -1.0)
    for found, expected in zip(derivatives(), directly, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('share', [0.02, 0.5, 0.98])
def test_exponentials_just_in_range_are_correct_without_a_shift(share):
    """Output, first and second derivatives; `share` is the query's of the largest exponent."""
    q, k, v, same, opposite = draw_tensors('exp', queries=9, keys=9, dim=8, dtype=torch.float32)
    largest = 0.99 * exp_map.UNSHIFTED_LIMIT
    q = share * largest / torch.maximum(same.max(), opposite.max()) * q / q.abs().max()
    k = (1 - share) * largest * k / k.abs().max()
    feature_map = ExpMap(same, opposite)
    assert feature_map.key_shift(q.transpose(1, 2), k.transpose(1, 2), paired=False) is None
    tensors = (q, k, v, same, opposite)
    grad = torch.randn(v.shape)
    derivatives = []
    for function, dtype in (
        (lambda leaves: attend(leaves, 'exp', 'torch'), torch.float32),
        (exact_exponentials, torch.float64),
    ):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        output = function(leaves)
        first = torch.autograd.grad(output, leaves, grad.to(dtype), create_graph=True)
        second = torch.autograd.grad(sum(x.sum() for x in first), leaves)
        derivatives.append(([output.detach()], [x.detach() for x in first], second))
    for order, tolerance in enumerate((1e-5, 5e-5, 5e-4)):
        for found, expected in zip(derivatives[0][order], derivatives[1][order], strict=True):
            assert_within(found, expected, tolerance)


def test_only_exponentials_that_may_overflow_are_shifted():
    exp = make_map('exp', dtype=torch.float32)
    q, k, _ = (x.transpose(1, 2) for x in draw(dtype=torch.float32))
    assert exp.key_shift(q, k, paired=False) is None
    assert exp.key_shift(q, 60 * k, paired=False).shape == (2, 3, 1, 8)
    assert exp.key_shift(1000 * q, k, paired=False) is not None
    assert exp.key_shift(q.where(q > 0, torch.nan), k, paired=False) is not None
    assert exp.key_shift(q.to('meta'), k.to('meta'), paired=False) is not None
    with FakeTensorMode() as mode:
        assert exp.key_shift(*(mode.from_tensor(x) for x in (q, k)), paired=False) is not None


# ---- Large exponents

LARGE = {
    ('torch', 'float16'): (30.0, 4e-4, 5e-4),
    ('torch', 'bfloat16'): (60.0, 2e-3, 4e-3),
    ('torch', 'float32'): (60.0, 1e-6, 5e-5),
    ('triton', 'float16'): (30.0, 1e-3, 1e-2),
    ('triton', 'bfloat16'): (60.0, 1e-2, 2e-2),
    ('triton', 'float32'): (60.0, 5e-5, 5e-5),
}
"""Standard deviation, and the allowed relative errors of sums and of differences.

The output and the gradient of the values are sums of positive weights. All other gradients are
differences of large terms: with three keys one weight is nearly 1, and 1 minus it is small. The
kernels multiply in tf32; in 30 random draws their errors reached 0.0005 and 0.006 (float16), 0.004
and 0.011 (bfloat16).
"""


@pytest.mark.usefixtures('poisoned_memory')
@BOTH
@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32'])
@pytest.mark.parametrize(('queries', 'keys', 'dim'), [(70, 150, 32), (7, 3, 4)])
def test_large_exponents_are_exact(queries, keys, dim, dtype, backend):
    """exp(x) overflows float32 from x = 88: compare with float64, in several programs."""
    std, sum_error, difference_error = LARGE[backend, dtype]
    tensors = draw_tensors(
        'exp', batch=1, queries=queries, keys=keys, dim=dim, dtype=getattr(torch, dtype), std=std
    )
    tensors[1][:, keys // 2 :] *= 1.5  # larger keys in later programs, whose parts are shifted more
    grad = torch.randn(tensors[0].shape).to(tensors[0])
    found = with_gradients(lambda leaves: attend(leaves, 'exp', backend), tensors, grad)
    exact = with_gradients(exact_exponentials, tensors, grad, torch.float64)
    tolerances = [sum_error, difference_error, difference_error, sum_error]
    tolerances += [difference_error] * 2
    for x, expected, tolerance in zip(found, exact, tolerances, strict=True):
        assert_within(x.detach(), expected.detach(), tolerance)


@BOTH
def test_large_exponents_of_one_key(backend):
    """The output is the key's value wherever query and key share a non-zero feature, however large
    the others are.
    """
    tensors = draw_tensors('exp', queries=9, keys=1, dtype=torch.float32, std=60.0)
    q, k, v, *_ = tensors
    q[:, 0] = -k[:, 0].sign()
    q[:, 1] = -2 * k[:, 0]
    q[:, 2] = k[:, 0] * torch.tensor([1e-3, -2, -2, -2])
    output = attend(tensors, 'exp', backend)
    assert_within(output, exact_exponentials(tensors), 1e-5)
    # Opposite signs in all channels: no same-signed feature in common
    assert not output[:, :2, :, :2].any()
    torch.testing.assert_close(output[:, 2, :, :2], v[:, 0, :, :2], rtol=1e-5, atol=0)


@BOTH
@pytest.mark.parametrize('where', ['query', 'channel', 'keys'])
def test_large_exponents_next_to_zeros(where, backend):
    tensors = draw_tensors('exp', queries=20, keys=20, dim=16, dtype=torch.float16, std=30.0)
    q, k, *_ = tensors
    if where == 'query':
        q[:, 0] = 0
    elif where == 'channel':  # its keys must not raise the level of the others (E13)
        q[..., 3] = 0
        k[..., 3] = 300
    else:
        k.zero_()
    grad = torch.randn(q.shape)
    found = with_gradients(lambda leaves: attend(leaves, 'exp', backend), tensors, grad)
    assert all(torch.isfinite(x).all() for x in found)
    output = found[0].detach().double()
    torch.testing.assert_close(output, exact_exponentials(tensors), rtol=2e-3, atol=1e-2)
    if where == 'query':
        assert not output[:, 0].any()
        assert not found[1][:, 0].any()
    elif where == 'keys':
        assert not any(x.any() for x in found)


@BOTH
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32])
def test_large_exponents_with_rotary_tables(dtype, backend):
    """Rotated pairs mix exp(30) with exp(90): outputs may overflow float16. They are correct where
    their terms do not.
    """
    tolerance = {'torch': 1e-5, 'triton': 5e-5}[backend]
    if dtype == torch.float16:
        tolerance = {'torch': 5e-4, 'triton': 2e-3}[backend]  # four factors are in tf32
    tensors = draw_tensors('exp', queries=70, keys=70, dim=16, dtype=dtype, std=30.0)
    rotary = tuple(x.float() for x in rotary_tables(70, 16))
    options = {'rotary': tuple(x.to(DEVICE if backend == 'triton' else 'cpu') for x in rotary)}
    output = attend(tensors, 'exp', backend, **options).double()
    exact = exponential_attention(*tensors, rotary)
    terms = magnitude_of_terms(*tensors, rotary)
    representable = terms < 6e4
    assert 0.5 < representable.float().mean() < 1
    assert not output.isnan().any()
    assert ((output - exact).abs() <= tolerance * terms)[representable].all()


# ---- Large powers


@pytest.mark.parametrize(('backend', 'recorded'), EACH_WAY)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ('outlier', 'which', 'exponent', 'scale'),
    [
        (1e4, 'query', 4.9, 1.0),
        (1e4, 'key', 4.9, 1.0),
        (1e4, 'both', 4.9, 1.0),
        (65504, 'both', 4.9, 0.693),  # the largest float16, softplus(0)
        (1e3, 'both', 7.9, 1.0),
    ],
)
def test_large_powers_are_exact(outlier, which, exponent, scale, recorded, dtype, backend):
    """One token with large channels: the product of a query's and a key's powers overflows float32.

    The token is large in one head, because the gradients of a key with a weight of 1 cancel to
    nearly 0: errors are measured relative to those of the other heads.
    """
    q, k, v = draw(queries=20, keys=30, dim=16, dtype=torch.float64)
    for name, x in (('query', q), ('key', k)):
        if which in (name, 'both'):
            x[:, 3, 0] *= outlier / x[:, 3, 0].abs().amax()
    exponents = torch.full((3, 16), exponent) - torch.rand(3, 16) / 10
    tensors = [*(x.to(dtype) for x in (q, k, v)), exponents, torch.full((3, 16), scale)]
    grad = torch.randn(q.shape).to(dtype)
    found = with_gradients(
        lambda leaves: attend(leaves, 'power', backend), tensors, grad, create_graph=recorded
    )
    exact = with_gradients(power_attention, tensors, grad, torch.float64)
    output_error, gradient_error = POWER_ERRORS[backend, dtype]
    tolerances = [output_error] + [gradient_error] * 5
    for x, expected, tolerance in zip(found, exact, tolerances, strict=True):
        assert_within(x.detach(), expected.detach(), tolerance)


POWER_ERRORS = {
    ('torch', torch.float16): (4e-4, 5e-4),
    ('torch', torch.bfloat16): (2e-3, 4e-3),
    ('torch', torch.float32): (2e-6, 1e-5),
    ('triton', torch.float16): (1e-3, 1e-2),
    ('triton', torch.bfloat16): (5e-3, 2e-2),
    ('triton', torch.float32): (5e-6, 5e-5),
}
"""Allowed relative errors of the output and of a gradient.

The gradient of an exponent is a small difference where one key has a weight of nearly 1: with tf32
products and float16 inputs its error reached 0.008.
"""


@pytest.mark.parametrize(('backend', 'recorded'), EACH_WAY)
@pytest.mark.parametrize('small', [0.0, 1e-7, 1e-5])
def test_large_powers_almost_without_a_common_feature_are_exact(small, recorded, backend):
    """The state of the opposite-signed stream is 0 or 1e-45 of the other's, and its weights with
    large queries are not: a scale common to both must not make it 0.
    """
    large = torch.full((1, 5, 3, 4), 1e4)
    k = large.clone()
    k[:, 0, :, 0] = -small
    parameters = [torch.full((3, 4), 4.9), torch.full((3, 4), 0.693)]
    tensors = [large, k, torch.randn(large.shape), *parameters]
    grad = large / 1e4
    found = with_gradients(
        lambda leaves: attend(leaves, 'power', backend), tensors, grad, create_graph=recorded
    )
    exact = with_gradients(power_attention, tensors, grad, torch.float64)
    for x, expected in zip(found, exact, strict=True):
        assert_within(x.detach(), expected.detach(), 3e-5)


# ---- Both maps


@BOTH
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32])
@pytest.mark.parametrize('kind', MAPS)
def test_without_epsilon_a_zero_query_gives_zero(kind, dtype, backend):
    tensors = draw_tensors(kind, dtype=dtype)
    tensors[0][:, 0] = 0
    output = attend(tensors, kind, backend, eps=0.0)
    assert not output[:, 0].any()
    assert torch.isfinite(output).all()


@BOTH
@pytest.mark.parametrize('kind', MAPS)
def test_without_epsilon_a_large_query_without_a_common_feature_gives_zero(kind, backend):
    tensors = draw_tensors(kind, batch=1, queries=2, keys=1, dtype=torch.float32)
    for x, value in zip(tensors, (1e3, -200.0, 1.0), strict=False):
        x.fill_(value)
    output = attend(tensors, kind, backend, eps=0.0)
    torch.testing.assert_close(output, torch.tensor([0.0, 0, 1, 1]).expand_as(output))


@BOTH
@pytest.mark.parametrize(('kind', 'std'), [('power', 30.0), ('power', 15e3), ('exp', 30.0)])
def test_half_precision_never_overflows(kind, std, backend):
    """|x|^5 and exp(x) far exceed fp16, but the output is still an average of v."""
    tensors = draw_tensors(kind, queries=32, keys=32, dim=16, dtype=torch.float16, std=std)
    tensors[:3] = [x.clamp(-65504, 65504) for x in tensors[:3]]
    grad = torch.ones(tensors[0].shape)
    for x in with_gradients(lambda leaves: attend(leaves, kind, backend), tensors, grad):
        assert torch.isfinite(x).all()


@pytest.mark.kernels
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_a_key_that_is_nan_reaches_the_output(kind, monkeypatch):
    """With the NaN that hardware computes, all bits but the sign set; NumPy's would survive any
    rounding.
    """
    exp2 = np.exp2

    def on_hardware(x):
        found = exp2(x)
        nan = np.int32(0x7FFFFFFF).view(np.float32)
        return np.where(np.isnan(found), nan, found).astype(found.dtype)

    monkeypatch.setattr(np, 'exp2', on_hardware)
    tensors = draw_tensors(kind, queries=20, keys=40, heads=2, dim=16, dtype=torch.float16)
    tensors[1][0, 3, 0, 2] = float('nan')
    output = attend(tensors, kind, 'triton')
    assert output[0, :, 0].isnan().any(-1).all()
    assert torch.isfinite(output[0, :, 1:]).all()
