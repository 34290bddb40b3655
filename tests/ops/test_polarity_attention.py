"""`polarity_attention` compared with the equations written as loops; its gradients and its
properties.
"""

import math
from typing import ClassVar

import pytest
import torch
from torch.autograd import forward_ad

from mmpola.ops import ExpMap, PowerMap, chunked, polarity_attention
from mmpola.ops import triton as triton_backend
from mmpola.ops.inputs import AttentionInputs, FeatureMap
from mmpola.ops.reference import polarity_attention_reference
from tests.helpers.attention import MAPS, draw, make_map, rotary_tables


def power_features(x, p, s):
    positive = [
        max(value / scale, 0.0) ** power for value, power, scale in zip(x, p, s, strict=True)
    ]
    negative = [
        max(-value / scale, 0.0) ** power for value, power, scale in zip(x, p, s, strict=True)
    ]
    return positive, negative


def exp_features(x, temperatures, negative_first=False):
    positive, negative = [max(value, 0.0) for value in x], [max(-value, 0.0) for value in x]
    both = negative + positive if negative_first else positive + negative
    return [math.exp(value * t) - 1 for value, t in zip(both, temperatures, strict=True)]


def rotated(features, cos, sin):
    out = []
    for i in range(0, len(features), 2):
        a, b = features[i], features[i + 1]
        out += [a * cos[i] - b * sin[i], b * cos[i + 1] + a * sin[i + 1]]
    return out


def loops(q, k, v, feature_map, key_position=None, rotary=None, eps=1e-6):
    """Compute E1-E10 as printed, with loops over queries, keys, features and value channels, in
    Python floats.
    """
    batch, queries, heads, dim = q.shape
    keys, half = k.shape[1], dim // 2
    out = torch.empty(q.shape, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):

            def row(x, n, b=b, h=h):
                return x[b, n, h].tolist()

            psis, same, opposite = [], [], []
            for m in range(keys):
                key = row(k, m)
                if key_position is not None:
                    key = [a + p for a, p in zip(key, key_position[m, h].tolist(), strict=True)]
                if isinstance(feature_map, PowerMap):
                    s = [1.0] * dim if feature_map.scale is None else feature_map.scale[h].tolist()
                    positive, negative = power_features(key, feature_map.exponent[h].tolist(), s)
                    psis.append(positive + negative)
                else:
                    psis.append(exp_features(key, [1.0] * 2 * dim))
            for n in range(queries):
                query = row(q, n)
                if isinstance(feature_map, PowerMap):
                    positive, negative = power_features(query, feature_map.exponent[h].tolist(), s)
                    same.append(positive + negative)
                    opposite.append(negative + positive)
                else:
                    same.append(exp_features(query, feature_map.same[h].tolist()))
                    opposite.append(
                        exp_features(query, feature_map.opposite[h].tolist(), negative_first=True)
                    )
            mean = [sum(psi[i] for psi in psis) / keys for i in range(2 * dim)]
            for n in range(queries):
                for phi, channels in ((same[n], range(half)), (opposite[n], range(half, dim))):
                    normaliser = sum(a * c for a, c in zip(phi, mean, strict=True)) + eps
                    read = (
                        phi
                        if rotary is None
                        else rotated(phi, rotary[0][n].tolist(), rotary[1][n].tolist())
                    )
                    weights = []
                    for m, psi in enumerate(psis):
                        if rotary is not None:
                            psi = rotated(psi, rotary[0][m].tolist(), rotary[1][m].tolist())
                        weights.append(
                            sum(a * c for a, c in zip(read, psi, strict=True)) / keys / normaliser
                        )
                    for channel in channels:
                        out[b, n, h, channel] = sum(
                            w * row(v, m)[channel] for m, w in enumerate(weights)
                        )
    return out


@pytest.mark.parametrize('position', [False, True])
@pytest.mark.parametrize('kind', MAPS)
def test_equals_the_equations_as_loops(kind, position):
    q, k, v = draw()
    feature_map = make_map(kind)
    key_position = torch.randn(7, 3, 4, dtype=torch.float64) if position else None
    expected = loops(q, k, v, feature_map, key_position)
    torch.testing.assert_close(
        polarity_attention(q, k, v, feature_map, key_position=key_position),
        expected,
        rtol=1e-12,
        atol=1e-12,
    )


def test_rotary_rotates_the_numerator_only():
    q, k, v = draw(keys=5)
    feature_map, rotary = make_map('exp'), rotary_tables(5, 4)
    expected = loops(q, k, v, feature_map, rotary=rotary)
    torch.testing.assert_close(
        polarity_attention(q, k, v, feature_map, rotary=rotary), expected, rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(expected, polarity_attention(q, k, v, feature_map))


def operator_of(tensors, kind, rotary=None):
    """Return the operator as a function of every differentiable tensor, for gradcheck."""

    def run(q, k, v, key_position, *parameters):
        feature_map = ExpMap(*parameters) if kind == 'exp' else PowerMap(*parameters)
        return polarity_attention(q, k, v, feature_map, key_position=key_position, rotary=rotary)

    return run, [x.requires_grad_() for x in tensors]


@pytest.mark.parametrize(
    ('kind', 'with_rotary'), [*((kind, False) for kind in MAPS), ('exp', True)]
)
@pytest.mark.parametrize('batch', [1, 2])
def test_first_and_second_gradients(kind, with_rotary, batch):
    parameters = [x for x in make_map(kind, heads=2).parameters().values() if x is not None]
    tensors = [
        *draw(batch=batch, queries=3, keys=3, heads=2),
        torch.randn(3, 2, 4, dtype=torch.float64),
        *parameters,
    ]
    run, tensors = operator_of(tensors, kind, rotary_tables(3, 4) if with_rotary else None)
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@pytest.mark.parametrize(
    ('kind', 'with_rotary'), [*((kind, False) for kind in MAPS), ('exp', True)]
)
@pytest.mark.parametrize('batch', [1, 2])
def test_gradients_may_be_batched(kind, with_rotary, batch):
    parameters = [x for x in make_map(kind).parameters().values() if x is not None]
    tensors = [*draw(batch=batch, queries=7), torch.randn(7, 3, 4).double(), *parameters]
    run, leaves = operator_of(tensors, kind, rotary_tables(7, 4) if with_rotary else None)
    output = run(*leaves)
    grads = torch.randn(3, *output.shape).double()

    def gradients(grad, **kwargs):
        return torch.autograd.grad(output, leaves, grad, retain_graph=True, **kwargs)

    expected = [torch.stack(rows) for rows in zip(*map(gradients, grads), strict=True)]
    for found in (gradients(grads, is_grads_batched=True), torch.func.vmap(gradients)(grads)):
        assert not any(x.requires_grad for x in found)
        for gradient, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, truth)
    jacobian = torch.autograd.functional.jacobian
    together = jacobian(lambda q: run(q, *leaves[1:]).sum((0, 1)), leaves[0], vectorize=True)
    one_by_one = jacobian(lambda q: run(q, *leaves[1:]).sum((0, 1)), leaves[0])
    torch.testing.assert_close(together, one_by_one)


@pytest.mark.parametrize('arguments', [lambda x: (x, x, x), lambda x: (x, x.sin(), 2 * x)])
def test_gradients_recorded_for_second_ones_are_the_same_where_arguments_share_a_tensor(arguments):
    x, feature_map = draw()[0].requires_grad_(), make_map('power')
    (expected,) = torch.autograd.grad(
        polarity_attention(*arguments(x), feature_map).square().sum(), x
    )
    output = polarity_attention(*arguments(x), feature_map)
    (recorded,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    torch.testing.assert_close(recorded, expected, rtol=1e-10, atol=1e-12)


def test_rotary_tables_that_change_before_the_backward_pass_are_an_error():
    q, k, v = draw(keys=5)
    cos, sin = rotary_tables(5, 4)
    output = polarity_attention(q.requires_grad_(), k, v, make_map('exp'), rotary=(cos, sin))
    cos.zero_()
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        output.sum().backward()


@pytest.mark.parametrize(
    ('kind', 'with_rotary'), [*((kind, False) for kind in MAPS), ('exp', True)]
)
def test_chunks_equal_the_reference(kind, with_rotary, monkeypatch):
    """Several chunks, the last one short, forward and for every gradient."""
    monkeypatch.setitem(chunked.CHUNK_ELEMENTS, 'cpu', 2 * 3 * 8 * 2)  # two tokens at a time
    feature_map = make_map(kind)
    tensors = [*draw(queries=7), torch.randn(7, 3, 4, dtype=torch.float64)]
    rotary = rotary_tables(7, 4) if with_rotary else None
    parameters = [x for x in feature_map.parameters().values() if x is not None]
    leaves = [x.requires_grad_() for x in (*tensors, *parameters)]
    grad = torch.randn(2, 7, 3, 4, dtype=torch.float64)
    q, k, v, position = tensors
    outputs = [
        polarity_attention(q, k, v, feature_map, key_position=position, rotary=rotary),
        polarity_attention_reference(AttentionInputs(q, k, v, feature_map, position, rotary, 1e-6)),
    ]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    for in_chunks, expected in zip(
        *(torch.autograd.grad(o, leaves, grad) for o in outputs), strict=True
    ):
        torch.testing.assert_close(in_chunks, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('power', [1.001, 1.0, 0.1])  # steep near 0, yet 0 at 0
def test_gradients_are_zero_at_zero_and_computed_only_where_wanted(power):
    q, k, v = draw()
    q[:, 0] = 0
    q.requires_grad_()
    exponent = torch.full((3, 4), power, dtype=torch.float64, requires_grad=True)
    polarity_attention(q, k, v, PowerMap(exponent)).sum().backward()
    assert q.grad[:, 0].abs().max() == 0
    assert q.grad[:, 1:].abs().min() > 0
    assert torch.isfinite(exponent.grad).all()
    assert k.grad is None
    feature_map, position = (
        make_map('power'),
        torch.zeros(7, 3, 4, dtype=torch.float64, requires_grad=True),
    )
    (alone,) = torch.autograd.grad(
        polarity_attention(q, k, v, feature_map, key_position=position).sum(), position
    )
    (keys,) = torch.autograd.grad(
        polarity_attention(q, k.requires_grad_(), v, feature_map).sum(), k
    )
    torch.testing.assert_close(alone, keys.sum(0))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('power', [1.0, 0.1])
def test_chunks_equal_the_reference_next_to_zeros_with_small_exponents(power, dtype):
    q, k, v = (x.relu().requires_grad_() for x in draw(dtype=dtype))
    exponent = torch.full((3, 4), power, dtype=dtype, requires_grad=True)
    leaves = (q, k, v, exponent)
    grad = torch.randn(q.shape, dtype=dtype)
    inputs = AttentionInputs(q, k, v, PowerMap(exponent), None, None, 1e-6)
    recorded = polarity_attention_reference(inputs)
    in_chunks = polarity_attention(q, k, v, PowerMap(exponent))
    torch.testing.assert_close(in_chunks, recorded)
    expected = torch.autograd.grad(recorded, leaves, grad)
    for found, gradient in zip(torch.autograd.grad(in_chunks, leaves, grad), expected, strict=True):
        torch.testing.assert_close(found, gradient)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('kind', MAPS)
def test_second_gradients_are_finite_at_zero(kind, dtype):
    leaves = [
        *draw(dtype=dtype),
        *(x for x in make_map(kind, dtype=dtype).parameters().values() if x is not None),
    ]
    leaves[0][:, 0], leaves[1][..., 0] = 0, 0
    leaves = [x.requires_grad_() for x in leaves]
    feature_map = ExpMap(*leaves[3:]) if kind == 'exp' else PowerMap(*leaves[3:])
    output = polarity_attention(*leaves[:3], feature_map)
    first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
    assert all(torch.isfinite(x).all() for x in (*first, *second))


@pytest.mark.parametrize('kind', MAPS)
def test_order_of_keys_does_not_matter(kind):
    q, k, v = draw()
    order, feature_map = torch.randperm(7), make_map(kind)
    shuffled = polarity_attention(q, k[:, order], v[:, order], feature_map)
    torch.testing.assert_close(
        shuffled, polarity_attention(q, k, v, feature_map), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize('kind', MAPS)
def test_weights_sum_to_one(kind):
    q, k, _ = draw()
    ones = torch.ones_like(k)
    torch.testing.assert_close(
        polarity_attention(q, k, ones, make_map(kind), eps=0.0),
        torch.ones_like(q),
        rtol=1e-12,
        atol=1e-12,
    )


def test_flipping_all_signs_changes_nothing():
    """(q, k) -> (-q, -k): every pair keeps its relative polarity, so PolaFormer's output is the
    same.
    """
    q, k, v = draw()
    feature_map = make_map('power')
    torch.testing.assert_close(
        polarity_attention(-q, -k, v, feature_map),
        polarity_attention(q, k, v, feature_map),
        rtol=1e-12,
        atol=1e-12,
    )


def test_flipping_the_query_swaps_the_streams():
    q, k, v = draw()
    feature_map = make_map('power')
    flipped = polarity_attention(-q, k, v.roll(2, dims=-1), feature_map)
    torch.testing.assert_close(
        flipped.roll(2, dims=-1), polarity_attention(q, k, v, feature_map), rtol=1e-12, atol=1e-12
    )


def test_the_gradient_of_the_scale_needs_no_sum_over_tokens():
    """Queries and keys contribute equally (E18a), although their numbers and gradients differ."""
    q, k, v, grad = (torch.randn(2, n, 2, 6, dtype=torch.float64) for n in (5, 9, 9, 5))
    exponent, scale = (1 + torch.rand(2, 6, dtype=torch.float64) for _ in range(2))
    for x in (q, k, scale):
        x.requires_grad_()
    output = polarity_attention(q, k, v, PowerMap(exponent, scale))
    dq, dk, d_scale = torch.autograd.grad(output, (q, k, scale), grad)
    from_queries, from_keys = ((x * dx).sum((0, 1)) for x, dx in ((q, dq), (k, dk)))
    torch.testing.assert_close(from_queries, from_keys)
    torch.testing.assert_close(d_scale, -2 * from_queries / scale)


@pytest.mark.parametrize(
    ('dtype', 'tolerance'), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)]
)
@pytest.mark.parametrize('kind', MAPS)
def test_low_precision_costs_one_rounding_of_the_result(kind, dtype, tolerance):
    q, k, v = draw(queries=64, keys=64, heads=3, dim=16, dtype=dtype)
    feature_map = make_map(kind, dim=16)
    output = polarity_attention(q, k, v, feature_map)
    exact = polarity_attention(q.double(), k.double(), v.double(), feature_map)
    assert output.dtype == dtype
    assert (output.double() - exact).norm() / exact.norm() < tolerance


@pytest.mark.parametrize('create_graph', [False, True])
@pytest.mark.parametrize('kind', MAPS)
def test_autocast_reaches_neither_the_products_nor_those_of_the_backward_pass(kind, create_graph):
    leaves = [x.requires_grad_() for x in draw(dtype=torch.float32, std=5.0)]
    feature_map = make_map(kind, dtype=torch.float32)
    leaves += [x.requires_grad_() for x in feature_map.parameters().values() if x is not None]

    def results():
        output = polarity_attention(*leaves[:3], feature_map)
        return output, *torch.autograd.grad(
            output.square().sum(), leaves, create_graph=create_graph
        )

    with torch.autocast('cpu', dtype=torch.bfloat16):
        inside = results()
    for found, expected in zip(inside, results(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4 if create_graph else 0, atol=0)


def test_any_strides():
    packed = torch.randn(2, 6, 3, 3, 4, dtype=torch.float64)
    q, k, v = packed.unbind(2)
    strided = polarity_attention(q, k, v, make_map('power without scale'))
    torch.manual_seed(0)
    torch.randn(2, 6, 3, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(
        strided,
        polarity_attention(*(x.contiguous() for x in (q, k, v)), make_map('power without scale')),
    )


def test_empty_batch_and_no_queries():
    for batch, queries in ((0, 5), (2, 0)):
        q, k, v = (x.requires_grad_() for x in draw(batch=batch, queries=queries))
        output = polarity_attention(q, k, v, make_map('power'))
        output.sum().backward()
        assert output.shape == (batch, queries, 3, 4)
        assert k.grad.shape == k.shape
        assert not k.grad.any()


@pytest.mark.parametrize(
    ('kind', 'with_rotary'), [*((kind, False) for kind in MAPS), ('exp', True)]
)
def test_torch_func_transforms_the_operator(kind, with_rotary):
    """vmap, grad and jvp give what the batch and autograd give, also next to zeros."""
    q, k, v = draw(queries=7)
    q[:, 0], k[:, 1, :, 0] = 0, 0
    parameters = [x for x in make_map(kind).parameters().values() if x is not None]
    tensors = [q, k, v, torch.randn(7, 3, 4, dtype=torch.float64), *parameters]
    run, leaves = operator_of(tensors, kind, rotary_tables(7, 4) if with_rotary else None)
    together = torch.func.vmap(run, in_dims=(0, 0, 0, *[None] * (len(leaves) - 3)))
    samples = [x.unflatten(0, (2, 1)) for x in leaves[:3]]
    expected = run(*leaves)
    torch.testing.assert_close(together(*samples, *leaves[3:]).flatten(0, 1), expected)

    tangents = [torch.randn_like(x) for x in leaves]
    gradients = torch.autograd.grad(expected.square().sum(), leaves)
    found = torch.func.grad(lambda *x: run(*x).square().sum(), argnums=tuple(range(len(leaves))))(
        *leaves
    )
    for gradient, truth in zip(found, gradients, strict=True):
        torch.testing.assert_close(gradient, truth)
    _, slope = torch.func.jvp(lambda *x: run(*x).square().sum(), tuple(leaves), tuple(tangents))
    torch.testing.assert_close(
        slope, sum((a * b).sum() for a, b in zip(gradients, tangents, strict=True))
    )


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_compiles_as_one_graph(kind):
    # in float64: float32 gradients that cancel differ between CPUs by more than any tight tolerance
    leaves = [*draw(keys=5), *make_map(kind).parameters().values()]
    leaves = [x.requires_grad_() for x in leaves]
    rotary = rotary_tables(5, 4) if kind == 'exp' else None

    def attend(q, k, v, *parameters):
        feature_map = ExpMap(*parameters) if kind == 'exp' else PowerMap(*parameters)
        return polarity_attention(q, k, v, feature_map, rotary=rotary)

    compiled = torch.compile(attend, fullgraph=True, backend='aot_eager')(*leaves)
    torch.testing.assert_close(compiled, attend(*leaves))
    grad = torch.randn(compiled.shape)
    for found, expected in zip(
        *(torch.autograd.grad(o, leaves, grad) for o in (compiled, attend(*leaves))), strict=True
    ):
        torch.testing.assert_close(found, expected)


class Absolute(FeatureMap):
    """A feature map of somebody else's, with the equations alone: |x|, one stream."""

    KIND = 'absolute'
    AXES: ClassVar = {'weight': ('H', 'D'), 'nothing': ('H', 'D')}
    OPTIONAL: ClassVar = ('nothing',)
    TAKES_ROTARY = False

    def __init__(self, weight, nothing=None):
        self.weight = weight
        self.nothing = nothing

    def parameters(self):
        return {'weight': self.weight, 'nothing': self.nothing}

    def attention(self, inputs):
        weight = inputs.feature_map.weight
        phi = inputs.q.abs() * weight
        psi = inputs.k.abs()
        scores = torch.einsum('bnhd,bmhd->bhnm', phi, psi)
        scores = scores / (scores.sum(-1, keepdim=True) + inputs.eps)
        return torch.einsum('bhnm,bmhd->bnhd', scores, inputs.v)


def test_any_feature_map_is_accepted():
    q, k, v = torch.randn(3, 2, 5, 2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda *x: polarity_attention(*x[:3], Absolute(x[3])),
        [x.detach().requires_grad_() for x in (q, k, v, weight)],
    )
    inputs = AttentionInputs(q, k, v, Absolute(weight), None, None, 1e-6)
    reason = 'feature_map: expected PowerMap or ExpMap, got Absolute'
    assert reason in triton_backend.unsupported(inputs)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_forward_mode_outside_of_functorch(kind):
    q, k, v, tangent = torch.randn(4, 1, 6, 2, 4, dtype=torch.float64)
    two = torch.full((2, 4), 2.0, dtype=torch.float64)
    feature_map = PowerMap(two)
    if kind == 'exp':
        feature_map = ExpMap(two.repeat(1, 2) / 4, two.repeat(1, 2) / 3)

    def run(q):
        return polarity_attention(q, k, v, feature_map)

    with forward_ad.dual_level():
        dual = run(forward_ad.make_dual(q, tangent))
        found = forward_ad.unpack_dual(dual).tangent
    _, expected = torch.func.jvp(run, (q,), (tangent,))
    torch.testing.assert_close(found, expected)
