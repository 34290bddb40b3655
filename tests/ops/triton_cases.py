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

from mmpola.backbones import PolaFormerPP, PolaPVT
from mmpola.ops import ExpMap, PowerMap, available_backends, polarity_attention
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.triton import operator
from mmpola.ops.triton.launch import plan
from mmpola.ops.triton.tensors import Parameters
from tests.helpers.exponential_truth import exponential_attention, magnitude_of_terms

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
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what, x in found.items():
        assert torch.isfinite(x).all(), what


@pytest.mark.usefixtures('_poisoned')
@pytest.mark.parametrize(
    ('dtype', 'std', 'tolerance'),
    [(torch.float16, 30.0, 5e-3), (torch.bfloat16, 60.0, 1e-2), (torch.float32, 60.0, 5e-5)],
)
def test_values_of_large_exponents_are_exact(dtype, std, tolerance):
    """exp(x) leaves float32 from x = 88: against float64 without any scaling, in several programs and blocks."""
    tensors = draw(32, 70, 150, 'exp', dtype, std=std, position=False)
    tensors[1][:, 64:] *= 1.5  # a later block's keys are larger: what has been summed is scaled again
    grad = torch.randn_like(tensors[0])
    found = results(tensors, 'exp', grad)
    names = [name for name, x in zip(LEAVES, tensors, strict=True) if x is not None]
    leaves = [x.double().requires_grad_() for x in tensors if x is not None]
    exact = exponential_attention(*leaves)
    gradients = torch.autograd.grad(exact, leaves, grad.double())
    for what, expected in zip(('o', *names), (exact.detach(), *gradients), strict=True):
        assert (found[what].double() - expected).norm() <= tolerance * expected.norm(), what


@pytest.mark.parametrize('which', ['zero query', 'zero keys', 'one key'])
def test_values_of_large_exponents_beside(which):
    tensors = draw(16, 20, 1 if which == 'one key' else 20, 'exp', torch.float16, std=30.0, position=False)
    if which == 'zero query':
        tensors[0][:, 0] = 0
    elif which == 'zero keys':
        tensors[1].zero_()
    found = results(tensors, 'exp', torch.randn_like(tensors[0]))
    assert all(torch.isfinite(x).all() for x in found.values())
    expected = exponential_attention(*(x for x in tensors if x is not None))
    torch.testing.assert_close(found['o'].double(), expected, rtol=2e-3, atol=1e-2)
    if which == 'zero query':
        assert not found['o'][:, 0].any()
        assert not found['q'][:, 0].any()
    elif which == 'zero keys':
        assert not any(x.any() for x in found.values())


def test_values_of_large_exponents_under_rotary():
    """Turned pairs mix exp(30) with exp(90): the quotient may leave fp16. Where its terms do not, it is right."""
    tensors, rotary = draw(16, 70, 70, 'exp', torch.float16, std=30.0, position=False), rotary_tables(70, 16)
    output = attend(tensors, 'exp', rotary).double()
    arguments = *(x for x in tensors if x is not None), rotary
    exact, terms = exponential_attention(*arguments), magnitude_of_terms(*arguments)
    representable = terms < 6e4
    assert 0.5 < representable.float().mean() < 1
    assert not output.isnan().any()
    assert ((output - exact).abs() <= 2e-3 * terms)[representable].all()  # tf32 cuts four factors


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


@pytest.mark.parametrize(
    ('axis', 'stride'),
    [(0, 2**31 + 64), (0, 2**30 + 64), (1, 2**31 + 64), (2, 2**30 + 64)],
    ids=['batch', 'batch of 32-bit stride', 'tokens', 'heads of 32-bit stride'],
)
def test_values_far_apart_in_memory(axis, stride):
    """Elements more than 2^31 from the first: offsets are 64-bit. Of the memory asked for only the rows are touched."""
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
        output, *made = operator.polarity_attention(q, k, v, *small, 1e-6)
    wanted = [x is not None for x in (q, k, v, position, *parameters)]
    arguments = [x if x is None or not isinstance(x, torch.Tensor) else x.detach() for x in (q, k, v, *small)]
    torch.library.opcheck(
        operator.polarity_attention_gradient, (*arguments, 1e-6, torch.randn_like(output), *made, wanted)
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


def test_operator_is_available():
    assert available_backends() == ['triton', 'reference']


def test_operator_puts_heads_on_the_axis_that_holds_them():
    """A grid's second axis ends at 65,535."""
    todo = plan('state', torch.empty(16384, 100, 8, 16, device='meta'), Parameters.of(*[None] * 7))
    assert todo.grid == (131072, 1)


@pytest.mark.skipif(INTERPRETED, reason='the interpreter needs minutes for 70,000 programs')
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_operator_takes_many_heads(kind):
    tensors = draw(16, 20, 30, kind, torch.float16, batch=8750, heads=8)
    grad = torch.randn_like(tensors[0])
    expected = results(tensors, kind, grad, backend='reference')
    for what, found in results(tensors, kind, grad).items():
        error = (found.double() - expected[what]).norm() / expected[what].double().norm()
        assert error <= 2e-3, what


WIDTHS = {'embed_dims': (16, 16, 16, 32), 'depths': (1, 1, 1, 1), 'num_heads': (1, 1, 1, 2), 'mlp_ratios': (1, 1, 1, 1)}
LAYER_SCALE = {'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4}
STEPS = 3 if INTERPRETED else 50


@pytest.mark.parametrize(
    ('backbone', 'arch'),
    [(PolaPVT, WIDTHS), (PolaFormerPP, {**WIDTHS, **LAYER_SCALE})],
    ids=['PolaPVT', 'PolaFormerPP'],
)
def test_operator_trains_as_the_reference_does(backbone, arch):
    images = torch.randn(2, 3, 32, 32, device=DEVICE)
    curves = {}
    for backend in ('triton', 'reference'):
        torch.manual_seed(1)
        model = backbone(arch, drop_path_rate=0.0, backend=backend).to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        targets, losses = None, []
        for _ in range(STEPS):
            maps = model(images)
            targets = targets or [torch.randn_like(x) for x in maps]
            loss = sum((x - target).square().mean() for x, target in zip(maps, targets, strict=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves[backend] = losses
    assert curves['reference'][-1] < 0.95 * curves['reference'][0]
    assert curves['triton'] == pytest.approx(curves['reference'], rel=1e-5 if INTERPRETED else 1e-3)


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
