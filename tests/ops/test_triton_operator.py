"""The attention kernels as an operator of torch: opcheck, torch.compile, FLOPs, launch grid,
training.
"""

from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime.jit import KernelInterface

from mmpola.backbones import PolaFormerPP, PolaPVT
from mmpola.ops import available_backends, mix_and_gate
from mmpola.ops.triton import IS_INTERPRETED, passes, power
from mmpola.ops.triton.functions import (
    polarity_attention_gradient_operator,
    polarity_attention_operator,
)
from tests.helpers.attention import DEVICE, attend, draw_leaves, draw_rotary, results

LARGEST_SHARE = passes.LARGEST_SHARE

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_opcheck(kind):
    q, k, v, position, first, second = draw_leaves(16, 12, 12, kind, heads=1, batch=1)
    rotary = draw_rotary(12, 16) if kind == 'exp' else (None, None)
    small = (position, first, second, *rotary)
    for x in (q, k, v, position, first, second):
        x.requires_grad_()
    torch.library.opcheck(polarity_attention_operator, (q, k, v, *small, 1e-6, kind))
    with torch.no_grad():
        output, state = polarity_attention_operator(q, k, v, *small, 1e-6, kind)
    wanted = [x is not None for x in (q, k, v, position, first, second)]
    arguments = [
        x if x is None or not isinstance(x, torch.Tensor) else x.detach() for x in (q, k, v, *small)
    ]
    torch.library.opcheck(
        polarity_attention_gradient_operator,
        (
            *arguments,
            1e-6,
            kind,
            torch.randn_like(output),
            None if kind == 'exp' else output,
            state,
            wanted,
        ),
    )


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_compiles_as_one_graph_once(kind):
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(
        lambda *tensors: attend(tensors, kind), fullgraph=True, backend=count, dynamic=True
    )
    for queries, keys in pairwise((20, 30, 24, 17)):
        tensors = draw_leaves(16, queries, keys, kind)
        torch.testing.assert_close(compiled(*tensors), attend(tensors, kind), rtol=0, atol=0)
    assert len(compilations) == 1


def test_compiles_with_gradients():
    tensors = draw_leaves(16, 20, 30, 'power')
    leaves = [x.requires_grad_() for x in tensors]
    compiled = torch.compile(
        lambda *tensors: attend(tensors, 'power'), fullgraph=True, backend='aot_eager'
    )
    grad = torch.randn_like(tensors[0])
    for found, expected in zip(
        torch.autograd.grad(compiled(*leaves), leaves, grad),
        torch.autograd.grad(attend(leaves, 'power'), leaves, grad),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_checkpointing_and_autocast_change_nothing(kind):
    tensors = draw_leaves(16, 20, 30, kind, torch.float16)
    grad = torch.randn_like(tensors[0])
    expected = results(tensors, kind, grad)
    leaves = [x.requires_grad_() for x in tensors]
    with torch.autocast(DEVICE, torch.bfloat16):
        output = checkpoint(lambda *tensors: attend(tensors, kind), *leaves, use_reentrant=False)
        found = torch.autograd.grad(output, leaves, grad)
    assert torch.equal(output, expected.pop('o'))
    for (what, gradient), d in zip(expected.items(), found, strict=True):
        assert torch.equal(d, gradient), what


def test_every_launch_asks_for_fused_multiply_adds(monkeypatch):
    """Triton 3.10 leaves them out by default."""
    asked = {}
    select_grid = KernelInterface.__getitem__

    def record(kernel, grid):
        run = select_grid(kernel, grid)

        def launch(*args, **kwargs):
            asked[kernel.__name__] = kwargs.get('enable_fp_fusion')
            return run(*args, **kwargs)

        return launch

    monkeypatch.setattr(KernelInterface, '__getitem__', record)
    for kind in ('power', 'exp'):
        tensors = draw_leaves(16, 40, 40, kind, torch.float16)
        results(tensors, kind, torch.randn_like(tensors[0]))
    values = torch.randn(1, 12, 2, 16, device=DEVICE)
    weight = torch.randn(16, 1, 3, 3, device=DEVICE, requires_grad=True)
    gate = torch.ones(1, 12, 32, device=DEVICE)
    mix_and_gate(values, values, gate, weight, None, (3, 4), backend='triton').sum().backward()
    assert len(asked) == 12
    assert all(value is True for value in asked.values())


def test_flop_counter_sees_the_products():
    tensors = draw_leaves(16, 20, 30, 'power', position=False)
    with FlopCounterMode(display=False) as counter:
        output = attend([tensors[0].requires_grad_(), *tensors[1:]], 'power')
        assert counter.get_total_flops() == 4 * 2 * 2 * (20 + 30) * 16 * 16
        output.sum().backward()
    assert counter.get_total_flops() == 12 * 2 * 2 * (20 + 30) * 16 * 16


def test_backend_is_available():
    assert available_backends() == ['triton', 'torch']


def plan_power(name, x):
    return passes.plan_pass(name, 'power', False, x.shape, x.dtype, x.device, 'tf32')


def test_heads_are_on_the_axis_that_is_long_enough():
    """The second axis of a grid is limited to 65,535."""
    plan = plan_power('state', torch.empty(16384, 100, 8, 16, device='meta'))
    assert plan.grid == (131072, 1)


@pytest.fixture
def h100(monkeypatch):
    """Plan as for an H100: its number of multiprocessors, and no more partial states than by
    default.
    """
    monkeypatch.setattr(passes, 'processors_of', lambda device: 132)
    monkeypatch.setattr(passes, 'LARGEST_SHARE', LARGEST_SHARE)


SHAPES = {
    'Pola-PVT-T stage 1, 800x1333': (2, 66800, 1, 64),
    'Pola-PVT-T stage 4, 800x1333': (2, 1050, 8, 64),
    'Pola-Swin-T stage 2, 224x224': (64, 784, 6, 32),
}


@pytest.mark.usefixtures('h100')
@pytest.mark.parametrize('name', ['state', 'query_gradient'])
@pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)
def test_the_split_fills_the_gpu_or_the_share_of_partial_states(shape, name):
    x = torch.empty(shape, device='meta', dtype=torch.float16)
    rows, chunks = plan_power(name, x).grid
    programs = power.LAUNCHES[name, shape[3]].programs
    rounds = rows * chunks / (132 * programs)
    states = 2 * 4 * chunks * rows * 2 * shape[3] * (shape[3] + 1)
    share = 100 * states / (4 * 2 * x.numel())
    assert chunks == 1 or share <= LARGEST_SHARE
    assert rounds >= 0.9 * -(-rounds // 1) or share > 0.75 * LARGEST_SHARE


@pytest.mark.skipif(IS_INTERPRETED, reason='the interpreter needs minutes for 70,000 programs')
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_many_heads(kind):
    tensors = draw_leaves(16, 20, 30, kind, torch.float16, batch=8750, heads=8)
    grad = torch.randn_like(tensors[0])
    expected = results(tensors, kind, grad, backend='torch')
    for what, found in results(tensors, kind, grad).items():
        error = (found.double() - expected[what]).norm() / expected[what].double().norm()
        assert error <= 2e-3, what


WIDTHS = {
    'embed_dims': (16, 16, 16, 32),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 2),
    'mlp_ratios': (1, 1, 1, 1),
}
LAYER_SCALE = {'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4}
STEPS = 2 if IS_INTERPRETED else 50


@pytest.mark.parametrize(
    ('backbone', 'arch'),
    [(PolaPVT, WIDTHS), (PolaFormerPP, {**WIDTHS, **LAYER_SCALE})],
    ids=['PolaPVT', 'PolaFormerPP'],
)
def test_training_curves_equal_those_of_the_reference(backbone, arch):
    images = torch.randn(2, 3, 32, 32, device=DEVICE)
    curves = {}
    for backend in ('triton', 'torch'):
        torch.manual_seed(1)
        model = (
            backbone(arch, attn_types='LLSS', drop_path_rate=0.0, backend=backend)
            .to(DEVICE)
            .train()
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        targets, losses = None, []
        for _ in range(STEPS):
            maps = model(images)
            targets = targets or [torch.randn_like(x) for x in maps]
            loss = sum(
                (x - target).square().mean() for x, target in zip(maps, targets, strict=True)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves[backend] = losses
    assert curves['torch'][-1] < 0.97 * curves['torch'][0]  # the curve has a slope to compare
    assert curves['triton'] == pytest.approx(curves['torch'], rel=1e-5 if IS_INTERPRETED else 1e-3)


def test_unsupported_inputs_are_refused_with_every_reason():
    tensors = [None if x is None else x.double() for x in draw_leaves(66, 8, 8, 'power')]
    with pytest.raises(RuntimeError) as raised:
        attend(tensors, 'power')
    assert str(raised.value) == (
        "backend 'triton' cannot run: q: expected float16, bfloat16 or float32, got float64; "
        'q: expected a head dimension D <= 64, got D=66'
    )
    with pytest.raises(
        RuntimeError, match='tracers and exporters can record plain PyTorch operators only'
    ):
        torch.jit.trace(
            lambda q: attend([q, *draw_leaves(16, 8, 8, 'power')[1:]], 'power'),
            torch.randn(2, 8, 2, 16),
        )
