"""The kernels of `mix_and_gate`: error budgets, strides, gradients, and the operator that torch
sees.
"""

import os
from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmpola.ops import mix_and_gate
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.triton import functions
from mmpola.ops.triton import mix_and_gate as triton_mix_and_gate
from tests.helpers.attention import DEVICE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]

LEAVES = ('attended', 'values', 'gate', 'weight', 'bias')


def draw(grid, heads=2, dim=16, side=3, shared=True, bias=True, dtype=torch.float32, batch=2):
    """Draw o, v and g of `dtype`, views of one packed projection, and the kernel and its bias in
    float32.
    """
    kernels = dim if shared else heads * dim
    attended, values, gate = (
        torch.randn(batch, prod(grid), 3, heads, dim).to(DEVICE, dtype).unbind(2)
    )
    weight = torch.randn(kernels, 1, *[side] * len(grid)).to(DEVICE) / side
    return [
        attended,
        values,
        gate.flatten(2),
        weight,
        torch.randn(kernels).to(DEVICE) if bias else None,
    ]


def results(tensors, grid, grad, backend='triton', dtype=None, wanted=LEAVES):
    """Compute the output and the gradient of each tensor of LEAVES that exists and is wanted."""
    leaves = [None if x is None else x.detach().to(dtype or x.dtype) for x in tensors]
    named = zip(LEAVES, leaves, strict=True)
    asked = {name: x.requires_grad_() for name, x in named if x is not None and name in wanted}
    output = mix_and_gate(*leaves, grid, backend=backend)
    gradients = torch.autograd.grad(output, [*asked.values()], grad.to(output))
    return {'output': output.detach(), **dict(zip(asked, gradients, strict=True))}


CASES = {
    'one token': dict(grid=(1, 1), side=5, shared=False),
    'a row': dict(grid=(1, 37), side=5, heads=1, batch=1),
    'a column': dict(grid=(19, 1), batch=1),
    'less than a tile': dict(grid=(5, 3), dim=40, side=5, heads=1, batch=1),
    'several tiles': dict(grid=(9, 18), shared=False, batch=1, bias=False),
    'a kernel wider than the grid': dict(grid=(2, 3), side=7, heads=1),
    'several blocks of channels': dict(grid=(4, 5), dim=64, shared=False, batch=1),
    'one channel': dict(grid=(3, 3), dim=1, heads=3),
    'a sequence': dict(grid=(300,), side=5, heads=1),
    'a sequence shorter than its kernel': dict(grid=(2,), side=5, shared=False, bias=False),
    'a tap': dict(grid=(4, 5), side=1),
}


@pytest.mark.usefixtures('poisoned_memory')
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
@pytest.mark.parametrize('name', CASES)
def test_error_stays_within_the_budget(name, dtype):
    check_error_budget(CASES[name], dtype)


def check_error_budget(case, dtype):
    """Check output and gradients against float64: at most the same-dtype reference's error plus
    BACKEND_EXCESS.
    """
    tensors, grid = draw(**case, dtype=dtype), case['grid']
    grad = torch.randn_like(tensors[2])
    kernel, same_dtype = (results(tensors, grid, grad, backend) for backend in ('triton', 'torch'))
    exact = results(tensors, grid, grad, 'torch', torch.float64)
    assert list(kernel) == list(exact)
    for what, expected in exact.items():
        errors = [
            float((found[what].double() - expected).norm() / expected.norm())
            for found in (kernel, same_dtype)
        ]
        if os.environ.get('MMPOLA_PRINT_ERRORS'):
            print(f'ERR {dtype} {what:10} kernel {errors[0]:.1e} reference {errors[1]:.1e}')
        assert kernel[what].dtype == same_dtype[what].dtype
        assert errors[0] <= errors[1] + BACKEND_EXCESS[dtype][what != 'output'], what


def test_error_of_bfloat16_stays_within_the_budget():
    check_error_budget(CASES['less than a tile'], torch.bfloat16)


def test_results_are_reproducible_bit_for_bit():
    tensors = draw((9, 18), heads=1, dtype=torch.float16, batch=1)
    grad = torch.randn_like(tensors[2])
    first, second = (results(tensors, (9, 18), grad) for _ in range(2))
    for what, found in first.items():
        assert torch.equal(found, second[what]), what


def test_strides_do_not_matter():
    packed = torch.randn(2, 15, 3, 2, 16, device=DEVICE)
    heads_first = packed.permute(2, 0, 3, 1, 4).contiguous().permute(1, 3, 0, 2, 4)
    no_unit_stride = packed.transpose(3, 4).contiguous().transpose(3, 4)
    _, _, _, weight, bias = draw((5, 3))
    channels_last = weight.repeat(1, 2, 1, 1).contiguous(memory_format=torch.channels_last)[:, :1]
    grad = torch.randn(2, 15, 1, device=DEVICE).expand(2, 15, 32)
    expected = results(
        [*packed.unbind(2)[:2], packed[:, :, 2].flatten(2), weight, bias], (5, 3), grad.clone()
    )
    for layout in (packed, heads_first, no_unit_stride):
        attended, values, gate = layout.unbind(2)
        gate = gate.flatten(2).mT.contiguous().mT if layout is no_unit_stride else gate.flatten(2)
        found = results([attended, values, gate, channels_last, bias], (5, 3), grad)
        for what, value in expected.items():
            assert torch.equal(found[what], value), what


@pytest.mark.usefixtures('poisoned_memory')
def test_gradients_computed_alone_are_the_same():
    tensors = draw((5, 9), batch=1)
    grad = torch.randn_like(tensors[2])
    everything = results(tensors, (5, 9), grad)
    for wanted in (*((name,) for name in LEAVES), ('values', 'bias'), ('gate', 'weight')):
        some = results(tensors, (5, 9), grad, wanted=wanted)
        assert list(some) == ['output', *wanted]
        for what in wanted:
            assert torch.equal(some[what], everything[what]), (wanted, what)


def test_only_wanted_gradients_are_launched(monkeypatch):
    launched = []
    for name in ('launch_mix_and_gate', 'launch_taps_gradient'):
        launch = getattr(triton_mix_and_gate, name)

        def record(*args, launch=launch, **kwargs):
            launched.append('dv' if kwargs.get('flip') else 'dg' if kwargs else launch.__name__)
            return launch(*args, **kwargs)

        monkeypatch.setattr(triton_mix_and_gate, name, record)
    tensors = draw((3, 3))
    grad = torch.randn_like(tensors[2])
    for wanted, expected in {
        ('attended',): [],
        ('values',): ['dv'],
        ('gate',): ['dg'],
        ('bias',): ['launch_taps_gradient'],
    }.items():
        launched.clear()
        results(tensors, (3, 3), grad, wanted=wanted)
        assert launched == ['launch_mix_and_gate', *expected]


def test_a_nan_reaches_its_neighbours_only():
    tensors = draw((6, 12))
    tensors[1][0, 0, 1, 5] = float('nan')
    output = mix_and_gate(*tensors, (6, 12), backend='triton')
    assert output[0, :, 16 + 5].unflatten(0, (6, 12))[:2, :2].isnan().all()
    assert output.isnan().sum() == 4


@pytest.mark.parametrize(('batch', 'grid'), [(0, (3, 4)), (2, (0, 4))])
def test_empty_inputs(batch, grid):
    tensors = draw(grid, batch=batch)
    found = results(tensors, grid, torch.zeros_like(tensors[2]))
    assert found['output'].shape == (batch, grid[0] * grid[1], 32)
    assert found['weight'].shape == (16, 1, 3, 3)
    assert not any(found[what].any() for what in LEAVES)


def test_second_derivatives_and_batched_gradients_are_refused():
    tensors = draw((3, 3))
    values = tensors[1].requires_grad_()
    output = mix_and_gate(*tensors, (3, 3), backend='triton')
    (first,) = torch.autograd.grad(output.sum(), values, create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert str(raised.value) == "backend 'triton' has no second derivative: choose backend='torch'"
    with pytest.raises(RuntimeError, match="choose backend='torch'"):
        torch.autograd.grad(output, values, torch.stack([output] * 2), is_grads_batched=True)


@pytest.mark.parametrize('bias', [True, False])
def test_opcheck(bias):
    tensors = draw((3, 4), heads=1, bias=bias, side=1, batch=1)
    leaves = [None if x is None else x.requires_grad_() for x in tensors]
    torch.library.opcheck(functions.mix_and_gate_operator, (*leaves, 3, 4))
    detached = [None if x is None else x.detach() for x in tensors]
    dy = torch.randn(1, 12, 16, device=DEVICE)
    wanted = [True] * 5 if bias else [False, True, False, False, False]
    torch.library.opcheck(functions.mix_and_gate_gradient_operator, (*detached, 3, 4, dy, wanted))


def test_compiles_as_one_graph_once():
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(
        lambda *x, grid: mix_and_gate(*x, grid, backend='triton'),
        fullgraph=True,
        backend=count,
        dynamic=True,
    )
    for grid in ((4, 5), (3, 7), (6, 2)):
        tensors = draw(grid)
        assert torch.equal(
            compiled(*tensors, grid=grid), mix_and_gate(*tensors, grid, backend='triton')
        )
    assert len(compilations) == 1


def test_compiles_with_gradients():
    tensors = draw((4, 5))
    leaves = [x.detach().requires_grad_() for x in tensors]
    compiled = torch.compile(
        lambda *x: mix_and_gate(*x, (4, 5), backend='triton'), fullgraph=True, backend='aot_eager'
    )
    grad = torch.randn_like(tensors[2])
    for found, expected in zip(
        torch.autograd.grad(compiled(*leaves), leaves, grad),
        torch.autograd.grad(mix_and_gate(*leaves, (4, 5), backend='triton'), leaves, grad),
        strict=True,
    ):
        assert torch.equal(found, expected)


def test_flop_counter_sees_the_convolutions():
    tensors = draw((4, 5))
    convolution = 2 * 2 * 20 * 32 * 3 * 3
    with FlopCounterMode(display=False) as counter:
        output = mix_and_gate(*(x.requires_grad_() for x in tensors), (4, 5), backend='triton')
        assert counter.get_total_flops() == convolution
        output.sum().backward()
    assert counter.get_total_flops() == 4 * convolution


def test_unsupported_inputs_are_refused():
    tensors = [x.double() for x in draw((3, 3))]
    with pytest.raises(RuntimeError) as raised:
        mix_and_gate(*tensors, (3, 3), backend='triton')
    assert str(raised.value) == (
        "backend 'triton' cannot run: attended: expected float16, bfloat16 or float32, got float64"
    )
