"""What the kernels of `backend='triton'` are held to.

Not collected by itself: `test_triton.py` runs this file in processes of their own with TRITON_INTERPRET=1, which must
be set before triton is imported. On a machine with a GPU run it directly:

    python -m pytest tests/ops/triton_cases.py

In the interpreter a tf32 product is computed as the hardware does, on factors cut to 11 bits of mantissa.
"""

import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmpola.ops import ExpMap, PowerMap, available_backends, polarity_attention
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.triton import operator

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
DEVICE = 'cpu' if INTERPRETED else 'cuda'
LEAVES = ('q', 'k', 'v', 'key_position', 'parameter', 'other parameter')


@pytest.fixture(autouse=True)
def _tf32_as_on_the_hardware(monkeypatch):
    if not INTERPRETED:
        return
    interpreter = pytest.importorskip('triton.runtime.interpreter')
    exact = interpreter.InterpreterBuilder.create_dot

    def cut(factor):
        return interpreter.TensorHandle((factor.data.view(np.int32) & ~0x1FFF).view(np.float32), factor.dtype)

    def create_dot(self, a, b, d, input_precision, imprecise):
        if 'TF32' in str(input_precision):
            a, b = cut(a), cut(b)
        return exact(self, a, b, d, input_precision, imprecise)

    monkeypatch.setattr(interpreter.InterpreterBuilder, 'create_dot', create_dot)


@pytest.fixture
def _poisoned(monkeypatch):
    """Memory that a kernel forgets to write is NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, 'empty', lambda *args, **kwargs: empty(*args, **kwargs).fill_(float('nan')))


def draw(dim, queries, keys, kind, dtype=torch.float32, position=True, batch=2, heads=2, std=1.0):
    """q, k, v [B, N, H, D] of `dtype`; key position and the map's two parameters in float32, None if there is none."""
    tokens = [(std * torch.randn(batch, n, heads, dim)).to(dtype) for n in (queries, keys, keys)]
    parameters = [1 + 4 * torch.rand(heads, dim), 0.5 + torch.rand(heads, dim) if kind == 'power' else None]
    if kind == 'exp':
        parameters = [torch.rand(heads, 2 * dim), torch.rand(heads, 2 * dim)]
    tensors = [*tokens, torch.randn(keys, heads, dim) if position else None, *parameters]
    return [None if x is None else x.to(DEVICE) for x in tensors]


def rotary_tables(tokens, dim):
    angle = torch.rand(tokens, dim, device=DEVICE).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def attend(tensors, kind, rotary=None, backend='triton', **kwargs):
    q, k, v, position, *parameters = tensors
    feature_map = ExpMap(*parameters) if kind == 'exp' else PowerMap(*parameters)
    return polarity_attention(q, k, v, feature_map, key_position=position, rotary=rotary, backend=backend, **kwargs)


def results(tensors, kind, grad, rotary=None, backend='triton', dtype=None, wanted=LEAVES):
    """The output and the gradient of each tensor of LEAVES that exists and is wanted."""
    leaves = [None if x is None else x.detach().to(dtype or x.dtype) for x in tensors]
    asked = {
        name: x.requires_grad_() for name, x in zip(LEAVES, leaves, strict=True) if x is not None and name in wanted
    }
    rotary = None if rotary is None else tuple(x.to(dtype or x.dtype) for x in rotary)
    output = attend(leaves, kind, rotary, backend)
    return {
        'o': output.detach(),
        **dict(zip(asked, torch.autograd.grad(output, [*asked.values()], grad.to(output)), strict=True)),
    }


CASES = {
    'power': dict(dim=32, queries=70, keys=150, kind='power'),
    'power, one query': dict(dim=64, queries=1, keys=70, kind='power', position=False),
    'power, padded channels': dict(dim=40, queries=33, keys=20, kind='power without scale'),
    'power, one head': dict(dim=16, queries=20, keys=70, kind='power', heads=1, batch=3),
    'power, wide': dict(dim=128, queries=20, keys=40, kind='power', heads=1, batch=1),
    'exp': dict(dim=64, queries=40, keys=70, kind='exp', heads=1),
    'exp, one key': dict(dim=32, queries=70, keys=1, kind='exp', position=False),
    'exp, rotary': dict(dim=32, queries=70, keys=70, kind='exp', position=False, heads=1),
    'exp, rotary, padded channels': dict(dim=40, queries=17, keys=17, kind='exp'),
}


@pytest.mark.usefixtures('_poisoned')
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
@pytest.mark.parametrize('name', CASES)
def test_values_error_stays_within_the_budget(name, dtype):
    """Output and every gradient against float64: what the reference errs in this dtype, and BACKEND_EXCESS."""
    case = CASES[name]
    hold_to_the_budget(case, dtype, rotary_tables(case['queries'], case['dim']) if 'rotary' in name else None)


def hold_to_the_budget(case, dtype, rotary=None):
    tensors, kind = draw(**case, dtype=dtype), case['kind']
    grad = torch.randn_like(tensors[0])
    kernel = results(tensors, kind, grad, rotary)
    same_dtype = results(tensors, kind, grad, rotary, 'reference')
    exact = results(tensors, kind, grad, rotary, 'reference', torch.float64)
    for what, expected in exact.items():
        # With one key the output is v whatever q and k are: gradients near zero are measured against the incoming one.
        scale = max(expected.norm(), grad.double().norm() if case['keys'] == 1 else 0)
        errors = [float((found[what].double() - expected).norm() / scale) for found in (kernel, same_dtype)]
        if os.environ.get('MMPOLA_PRINT_ERRORS'):
            print(f'ERR {dtype} {what:16} kernel {errors[0]:.1e} reference {errors[1]:.1e}')
        assert kernel[what].dtype == same_dtype[what].dtype
        assert errors[0] <= errors[1] + BACKEND_EXCESS[dtype][what != 'o'], what


def test_values_of_bfloat16_stay_within_the_budget():
    hold_to_the_budget(CASES['power'], torch.bfloat16)


def test_values_of_float32_in_tf32_stay_within_tf32_noise(monkeypatch):
    """Torch's switch on: the figures in numerics.py, with the same margin."""
    monkeypatch.setattr('mmpola.ops.triton.launch.product_precision', lambda dtype: 'tf32')
    monkeypatch.setitem(BACKEND_EXCESS, torch.float32, (8e-4, 1e-3))
    hold_to_the_budget(CASES['power'], torch.float32)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_values_repeat_bit_for_bit(kind):
    tensors = draw(16, 70, 150, kind, torch.float16, heads=1)
    grad = torch.randn_like(tensors[0])
    first, second = (results(tensors, kind, grad) for _ in range(2))
    for what, found in first.items():
        assert torch.equal(found, second[what]), what


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_values_stay_finite_where_half_features_overflow(kind):
    tensors = draw(32, 40, 40, kind, torch.float16, std=30.0, position=False)
    if kind == 'exp':  # the product of two features must stay below float32's exp(88)
        tensors = [x if i > 1 else x.clamp(-40, 40) for i, x in enumerate(tensors)]
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what in ('o', 'q', 'k', 'v'):
        assert torch.isfinite(found[what]).all(), what


def test_values_of_weights_sum_to_one():
    """Factors rounded to nearest: cut ones leave the sum short by 1.1e-3 on average."""
    tensors = draw(32, 70, 150, 'power', torch.float16)
    tensors[2] = torch.ones_like(tensors[2])
    weights = attend(tensors, 'power', eps=0.0).float()
    assert (weights - 1).abs().max() <= 2**-10
    assert (weights - 1).mean().abs() < 1e-4


def test_values_carry_a_nan_on():
    tensors = draw(16, 20, 20, 'power')
    tensors[0][0, 3, 1, 5] = float('nan')
    output = attend(tensors, 'power')
    assert output[0, 3, 1].isnan().all()
    assert output.isnan().sum() == 16


def test_values_do_not_depend_on_strides():
    _, _, _, _, *parameters = draw(16, 20, 20, 'power')
    packed = torch.randn(2, 20, 3, 2, 16, device=DEVICE)
    heads_first = packed.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    no_unit_stride = packed.transpose(3, 4).contiguous().transpose(3, 4)
    grad = torch.randn(2, 20, 1, 1, device=DEVICE).expand(2, 20, 2, 16)
    expected = None
    for layout in (packed, heads_first, no_unit_stride):
        q, k, v = layout.unbind(2)
        found = results([q, k, v, None, *parameters], 'power', grad)
        expected = expected or results([*(x.contiguous() for x in (q, k, v)), None, *parameters], 'power', grad.clone())
        for what, value in expected.items():
            assert torch.equal(found[what], value), what


@pytest.mark.usefixtures('_poisoned')
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_gradients_asked_for_alone_are_the_same(kind):
    tensors = draw(16, 20, 30, kind, heads=1)
    grad = torch.randn_like(tensors[0])
    everything = results(tensors, kind, grad)
    for wanted in (('q',), ('k',), ('v',), ('key_position',), ('parameter',), ('q', 'other parameter')):
        some = results(tensors, kind, grad, wanted=wanted)
        for what in wanted:
            assert torch.equal(some[what], everything[what]), (wanted, what)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_gradients_at_zero_are_zero(kind):
    tensors = draw(16, 20, 20, kind, position=False)
    tensors[0][:, 0], tensors[1][:, 0] = 0, 0
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what in ('q', 'k'):
        assert found[what][:, 0].abs().max() == 0
        assert found[what][:, 1:].abs().min() > 0
    assert torch.isfinite(found['parameter']).all()


@pytest.mark.parametrize(('batch', 'queries'), [(0, 20), (2, 0)])
def test_gradients_of_nothing(batch, queries):
    tensors = draw(16, queries, 20, 'power', batch=batch)
    found = results(tensors, 'power', torch.zeros_like(tensors[0]))
    assert found['o'].shape == (batch, queries, 2, 16)
    assert all(not found[what].any() for what in LEAVES)


def test_gradients_of_second_order_are_refused():
    tensors = draw(16, 8, 8, 'power', position=False)
    q = tensors[0].requires_grad_()
    (first,) = torch.autograd.grad(attend(tensors, 'power').sum(), q, create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert str(raised.value) == "backend 'triton' has no second derivative: choose backend='reference'"


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_operator_passes_opcheck(kind):
    q, k, v, position, first, second = draw(16, 12, 12, kind)
    parameters = (None, None, first, second) if kind == 'exp' else (first, second, None, None)
    rotary = rotary_tables(12, 16) if kind == 'exp' else (None, None)
    small = (position, *parameters, *rotary)
    for x in (q, k, v, position, first, second):
        x.requires_grad_()
    torch.library.opcheck(operator.polarity_attention, (q, k, v, *small, 1e-6))
    with torch.no_grad():
        output, state, mean = operator.polarity_attention(q, k, v, *small, 1e-6)
    wanted = [x is not None for x in (q, k, v, position, *parameters)]
    arguments = [x if x is None or not isinstance(x, torch.Tensor) else x.detach() for x in (q, k, v, *small)]
    torch.library.opcheck(
        operator.polarity_attention_gradient, (*arguments, 1e-6, torch.randn_like(output), state, mean, wanted)
    )


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_operator_compiles_whole_and_once(kind):
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(lambda *tensors: attend(tensors, kind), fullgraph=True, backend=count, dynamic=True)
    for queries, keys in pairwise((20, 30, 24, 17)):
        tensors = draw(16, queries, keys, kind)
        torch.testing.assert_close(compiled(*tensors), attend(tensors, kind), rtol=0, atol=0)
    assert len(compilations) == 1


def test_operator_compiles_with_gradients():
    tensors = draw(16, 20, 30, 'power')
    leaves = [x.requires_grad_() for x in tensors]
    compiled = torch.compile(lambda *tensors: attend(tensors, 'power'), fullgraph=True, backend='aot_eager')
    grad = torch.randn_like(tensors[0])
    for found, expected in zip(
        torch.autograd.grad(compiled(*leaves), leaves, grad),
        torch.autograd.grad(attend(leaves, 'power'), leaves, grad),
        strict=True,
    ):
        assert torch.equal(found, expected)


def test_operator_is_seen_by_the_flop_counter():
    tensors = draw(16, 20, 30, 'power', position=False)
    with FlopCounterMode(display=False) as counter:
        output = attend([tensors[0].requires_grad_(), *tensors[1:]], 'power')
        assert counter.get_total_flops() == 4 * 2 * 2 * (20 + 30) * 16 * 16
        output.sum().backward()
    assert counter.get_total_flops() == 12 * 2 * 2 * (20 + 30) * 16 * 16


def test_operator_is_available_but_not_automatic(monkeypatch):
    assert available_backends() == ['triton', 'reference']
    monkeypatch.setattr('mmpola.ops.triton.operator.attention', None)
    tensors = draw(16, 8, 8, 'power')
    assert torch.equal(attend(tensors, 'power', backend='auto'), attend(tensors, 'power', backend='reference'))


def test_operator_says_what_it_does_not_support():
    tensors = [None if x is None else x.double() for x in draw(130, 8, 8, 'power')]
    with pytest.raises(RuntimeError) as raised:
        attend(tensors, 'power')
    assert str(raised.value) == (
        "backend 'triton' cannot run: q: expected float16, bfloat16 or float32, got float64; "
        'q: expected a head dimension D <= 128, got D=130'
    )
    with pytest.raises(RuntimeError, match='a tracer or exporter records plain operators only'):
        torch.jit.trace(lambda q: attend([q, *draw(16, 8, 8, 'power')[1:]], 'power'), torch.randn(2, 8, 2, 16))
