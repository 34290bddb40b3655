"""Queries and keys whose powers and exponentials overflow the dtype: results are finite and correct
to rounding.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mmpola.ops import ExpMap, PowerMap, exp_map, polarity_attention
from tests.helpers.attention import (
    MAPS,
    draw,
    exponential_attention,
    magnitude_of_terms,
    make_map,
    rotary_tables,
)


@pytest.mark.parametrize('with_rotary', [False, True])
def test_a_shift_changes_nothing(with_rotary, monkeypatch):
    """Exponentials in range are computed directly (E9); the shift of E11-E13 gives the same
    results.
    """
    leaves = [x.requires_grad_() for x in (*draw(keys=5), *make_map('exp').parameters().values())]
    tables = rotary_tables(5, 4) if with_rotary else None
    grad = torch.randn(2, 5, 3, 4, dtype=torch.float64)

    def attend():
        output = polarity_attention(*leaves[:3], ExpMap(*leaves[3:]), rotary=tables)
        first = torch.autograd.grad(output, leaves, grad, create_graph=True)
        return (
            output,
            *torch.autograd.grad(output, leaves, grad),
            *torch.autograd.grad(first[0].square().sum(), leaves),
        )

    directly = attend()
    monkeypatch.setattr(exp_map, 'UNSHIFTED_LIMIT', -1.0)
    for found, expected in zip(attend(), directly, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('share', [0.02, 0.5, 0.98])
def test_exponentials_just_in_range_are_correct_without_a_shift(share):
    """Output, first and second derivatives equal float64's; `share` is the query's share of the
    largest exponent.
    """
    q, k, v = draw(queries=9, keys=9, dim=8, dtype=torch.float32)
    exp = make_map('exp', dim=8, dtype=torch.float32)
    temperature = torch.maximum(exp.same.max(), exp.opposite.max())
    largest = 0.99 * exp_map.UNSHIFTED_LIMIT
    q, k = (
        share * largest / temperature * q / q.abs().max(),
        (1 - share) * largest * k / k.abs().max(),
    )
    assert exp.key_shift(q.transpose(1, 2), k.transpose(1, 2), paired=False) is None
    tensors = (q, k, v, *exp.parameters().values())
    leaves, exact_leaves = (
        [x.to(dtype).requires_grad_() for x in tensors] for dtype in (torch.float32, torch.float64)
    )
    grad = torch.randn(v.shape)
    output, exact = (
        polarity_attention(*leaves[:3], ExpMap(*leaves[3:])),
        exponential_attention(*exact_leaves),
    )
    assert_within(output.detach(), exact.detach(), 1e-5)
    first = torch.autograd.grad(output, leaves, grad, create_graph=True)
    expected = torch.autograd.grad(exact, exact_leaves, grad.double(), create_graph=True)
    for found, truth in zip(first, expected, strict=True):
        assert_within(found.detach(), truth.detach(), 5e-5)
    second = torch.autograd.grad(sum(x.sum() for x in first), leaves)
    for found, truth in zip(
        second, torch.autograd.grad(sum(x.sum() for x in expected), exact_leaves), strict=True
    ):
        assert_within(found, truth, 5e-4)


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize('kind', MAPS)
def test_without_epsilon_a_zero_query_gives_zero(kind, dtype):
    q, k, v = draw(dtype=dtype)
    q[:, 0] = 0
    output = polarity_attention(q, k, v, make_map(kind, dtype=torch.float32), eps=0.0)
    assert not output[:, 0].any()
    assert torch.isfinite(output).all()


@pytest.mark.parametrize('kind', MAPS)
def test_without_epsilon_a_large_query_without_a_common_feature_gives_zero(kind):
    q, k, v = (
        torch.full((1, 2, 3, 4), 1e3),
        torch.full((1, 1, 3, 4), -200.0),
        torch.ones(1, 1, 3, 4),
    )
    output = polarity_attention(q, k, v, make_map(kind, dtype=torch.float32), eps=0.0)
    torch.testing.assert_close(output, torch.tensor([0.0, 0, 1, 1]).expand_as(output))


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


@pytest.mark.parametrize(('kind', 'std'), [('power', 30.0), ('power', 15e3), ('exp', 30.0)])
def test_half_precision_never_overflows(kind, std):
    """|x|^5 and exp(x) far exceed fp16, but the output is still an average of v."""
    leaves = [
        x.clamp(-65504, 65504).requires_grad_()
        for x in draw(queries=32, keys=32, dim=16, dtype=torch.float16, std=std)
    ]
    feature_map = make_map(kind, dim=16, dtype=torch.float32)
    leaves += [x.requires_grad_() for x in feature_map.parameters().values()]
    output = polarity_attention(*leaves[:3], feature_map)
    assert torch.isfinite(output).all()
    for gradient in torch.autograd.grad(output.float().sum(), leaves):
        assert torch.isfinite(gradient).all()


LARGE = {
    torch.float16: (30.0, 4e-4, 5e-4),
    torch.bfloat16: (60.0, 2e-3, 4e-3),
    torch.float32: (60.0, 1e-6, 5e-5),
}
"""Standard deviation, and the allowed relative error of the output and of a gradient: the rounding
of the result.

Gradients in float32 lose more: with three keys one weight is nearly 1, and 1 minus it is a small
difference.
"""


@pytest.mark.parametrize(('queries', 'keys', 'dim'), [(64, 100, 16), (7, 3, 4)])
@pytest.mark.parametrize('dtype', LARGE)
def test_large_exponents_are_exact(dtype, queries, keys, dim):
    """exp(x) overflows float32 from x = 88: compare output and every gradient with unshifted
    float64.
    """
    std, output_error, gradient_error = LARGE[dtype]
    tensors = [*draw(queries=queries, keys=keys, dim=dim, dtype=dtype, std=std)]
    tensors += make_map('exp', dim=dim, dtype=torch.float32).parameters().values()
    leaves = [x.clone().requires_grad_() for x in tensors]
    exact_leaves = [x.double().requires_grad_() for x in tensors]
    output, exact = (
        polarity_attention(*leaves[:3], ExpMap(*leaves[3:])),
        exponential_attention(*exact_leaves),
    )
    assert_within(output.detach(), exact.detach(), output_error)
    grad = torch.randn(output.shape).to(dtype)
    found = torch.autograd.grad(output, leaves, grad)
    for gradient, expected in zip(
        found, torch.autograd.grad(exact, exact_leaves, grad.double()), strict=True
    ):
        assert_within(gradient, expected, gradient_error)


def power_attention(q, k, v, exponent, scale, eps=1e-6):
    """Compute E4-E8 and E1-E3 as printed in float64, where |x|^p of large x does not overflow."""
    q, k, v, exponent, scale = (x.double() for x in (q, k, v, exponent, scale))
    (plus, minus), psi = (
        [(sign * x / scale).relu() ** exponent for sign in (1, -1)] for x in (q, k)
    )
    outputs = []
    for phi, half in zip(([plus, minus], [minus, plus]), v.chunk(2, dim=-1), strict=True):
        products = (
            torch.einsum('bnhd,bmhd->bhnm', torch.cat(phi, dim=-1), torch.cat(psi, dim=-1))
            / k.shape[1]
        )
        weights = products / (products.sum(-1, keepdim=True) + eps)
        outputs.append(torch.einsum('bhnm,bmhd->bnhd', weights, half))
    return torch.cat(outputs, dim=-1)


@pytest.mark.parametrize(
    ('dtype', 'output_error', 'gradient_error'),
    [(torch.float16, 4e-4, 5e-4), (torch.bfloat16, 2e-3, 4e-3), (torch.float32, 2e-6, 1e-5)],
)
@pytest.mark.parametrize('recorded', [False, True])
@pytest.mark.parametrize(
    ('outlier', 'which', 'exponent', 'scale'),
    [
        (1e4, 'query', 4.9, 1.0),
        (1e4, 'key', 4.9, 1.0),
        (1e4, 'both', 4.9, 1.0),
        (65504, 'both', 4.9, 0.693),  # the largest float16, softplus(0)
        (5e3, 'both', 4.9, 0.693),
        (1e3, 'both', 7.9, 1.0),
    ],
)
def test_large_powers_are_exact(
    outlier, which, exponent, scale, recorded, dtype, output_error, gradient_error
):
    """One token with large channels: the product of a query's and a key's powers overflows float32.

    The token is large in one head, because the gradients of a key with a weight of 1 cancel to
    nearly 0: errors are measured relative to those of the other heads.
    """
    q, k, v = draw(queries=20, keys=30, dim=16, dtype=torch.float64)
    for name, x in (('query', q), ('key', k)):
        if which in (name, 'both'):
            x[:, 3, 0] *= outlier / x[:, 3, 0].abs().amax()
    parameters = [
        torch.full((3, 16), exponent) - torch.rand(3, 16) / 10,
        torch.full((3, 16), scale),
    ]
    tensors = [*(x.to(dtype) for x in (q, k, v)), *parameters]
    leaves = [x.clone().requires_grad_() for x in tensors]
    exact_leaves = [x.double().requires_grad_() for x in tensors]
    output, exact = (
        polarity_attention(*leaves[:3], PowerMap(*leaves[3:])),
        power_attention(*exact_leaves),
    )
    assert_within(output.detach(), exact.detach(), output_error)
    grad = torch.randn(output.shape).to(dtype)
    found = torch.autograd.grad(output, leaves, grad, create_graph=recorded)
    for gradient, expected in zip(
        found, torch.autograd.grad(exact, exact_leaves, grad.double()), strict=True
    ):
        assert_within(gradient.detach(), expected, gradient_error)


@pytest.mark.parametrize('noise', [0.0, 1e-5])
@pytest.mark.parametrize('recorded', [False, True])
def test_large_powers_without_a_common_feature_have_finite_gradients(recorded, noise):
    """The opposite-signed stream is empty, or nearly so: its gradients exceed float32 where the
    features are 0.
    """
    q, k, v = torch.full((1, 5, 3, 4), 1e4), torch.full((1, 5, 3, 4), 1e4), torch.randn(1, 5, 3, 4)
    k[:, 0, :, 0] = -noise
    leaves = [
        x.requires_grad_() for x in (q, k, v, torch.full((3, 4), 4.9), torch.full((3, 4), 0.693))
    ]
    output = polarity_attention(*leaves[:3], PowerMap(*leaves[3:]))
    gradients = torch.autograd.grad(output.sum(), leaves, create_graph=recorded)
    assert all(torch.isfinite(x).all() for x in (output, *gradients))


def assert_within(found, expected, tolerance):
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


def test_large_exponents_of_one_key():
    """The output is the key's value wherever query and key share a non-zero feature, however large
    the others are.
    """
    q, k, v = draw(queries=9, keys=1, dim=4, dtype=torch.float32, std=60.0)
    q[:, 0], q[:, 1], q[:, 2] = (
        -k[:, 0].sign(),
        -2 * k[:, 0],
        k[:, 0] * torch.tensor([1e-3, -2, -2, -2]),
    )
    feature_map = make_map('exp', dtype=torch.float32)
    output = polarity_attention(q, k, v, feature_map)
    expected = exponential_attention(q, k, v, feature_map.same, feature_map.opposite)
    assert_within(output, expected, 1e-5)
    assert not output[
        :, :2, :, :2
    ].any()  # opposite signs in all channels: no same-signed feature in common
    torch.testing.assert_close(output[:, 2, :, :2], v[:, 0, :, :2], rtol=1e-5, atol=0)


def test_large_exponents_in_a_channel_where_all_queries_are_zero():
    q, k, v = draw(dtype=torch.float32)
    q[..., 0], k[..., 0] = 0, 200
    feature_map = make_map('exp', dtype=torch.float32)
    expected = exponential_attention(q, k, v, feature_map.same, feature_map.opposite)
    assert_within(polarity_attention(q, k, v, feature_map), expected, 1e-5)


@pytest.mark.parametrize('zero', ['query', 'keys'])
def test_large_exponents_next_to_zeros(zero):
    leaves = draw(dtype=torch.float16, std=30.0)
    where = leaves[0][:, 0] if zero == 'query' else leaves[1]
    where.zero_()
    leaves = [
        x.requires_grad_()
        for x in (*leaves, *make_map('exp', dtype=torch.float32).parameters().values())
    ]
    output = polarity_attention(*leaves[:3], ExpMap(*leaves[3:]))
    gradients = torch.autograd.grad(output.float().sum(), leaves)
    assert all(torch.isfinite(x).all() for x in (output, *gradients))
    if zero == 'query':
        assert not output[:, 0].any()
        assert not gradients[0][:, 0].any()
        assert output[:, 1:].all()
    else:
        assert not output.any()
        assert not any(x.any() for x in gradients)


@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.float16, 5e-4), (torch.float32, 1e-5)])
def test_large_exponents_with_rotary_tables(dtype, tolerance):
    """Rotated pairs mix exp(30) with exp(90): the output itself may overflow fp16. Elsewhere it is
    correct.
    """
    q, k, v = draw(queries=40, keys=40, dim=16, dtype=dtype, std=30.0)
    feature_map, rotary = make_map('exp', dim=16, dtype=torch.float32), rotary_tables(40, 16)
    output = polarity_attention(q, k, v, feature_map, rotary=rotary).double()
    parameters = feature_map.parameters().values()
    exact, terms = (
        f(q, k, v, *parameters, rotary) for f in (exponential_attention, magnitude_of_terms)
    )
    representable = exact.abs() < 6e4
    assert 0.5 < representable.float().mean() < 1
    assert not output.isnan().any()
    assert ((output - exact).abs() <= tolerance * terms)[representable].all()
