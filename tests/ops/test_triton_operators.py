"""The kernels as operators of torch: wanted gradients, autocast, opcheck, torch.compile, FLOPs."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime.jit import KernelInterface

from mmpola.backbones import PolaFormerPP, PolaPVT
from mmpola.kernels.check import attention_problem, mix_and_gate_problem
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.inputs import MixAndGateInputs
from mmpola.ops.triton import functions, passes, power
from tests.helpers.attention import DEVICE

pytestmark = pytest.mark.kernels

KINDS = ('power', 'rotary', 'mix_and_gate')


def draw(kind, dtype=torch.float32, tokens=12, batch=1):
    """Draw small arguments of an operator, with every optional tensor."""
    device = torch.device(DEVICE)
    if kind == 'mix_and_gate':
        return mix_and_gate_problem(
            device, dtype, 16, batch=batch, grid=(3, tokens // 3), heads=2, window=(3, 3),
            is_shared=True,
        )  # fmt: skip
    return attention_problem(
        device, dtype, 16, feature_map='PowerMap' if kind == 'power' else 'ExpMap', batch=batch,
        queries=tokens, keys=tokens, heads=2, has_rotary=kind == 'rotary',
    )  # fmt: skip


def call(problem, leaves, backend='triton'):
    """Compute the output from the tensors of a problem."""
    inputs = problem.build(**leaves)
    if isinstance(inputs, MixAndGateInputs):
        return mix_and_gate(*inputs.tensors(), inputs.grid, backend=backend)
    return polarity_attention(
        inputs.q, inputs.k, inputs.v, inputs.feature_map, key_position=inputs.key_position,
        rotary=inputs.rotary, backend=backend,
    )  # fmt: skip


def results(problem, wanted=None, backend='triton'):
    """Return the output and the gradients of the wanted tensors, by default of all."""
    leaves = {name: x.detach() for name, x in problem.tensors.items()}
    asked = [leaves[name].requires_grad_() for name in wanted or leaves]
    output = call(problem, leaves, backend)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    gradients = torch.autograd.grad(output, asked, grad)
    return {'output': output.detach(), **dict(zip(wanted or leaves, gradients, strict=True))}


def assert_equal(found, expected):
    for name, x in found.items():
        assert torch.equal(x, expected[name]), name


@pytest.fixture
def launched(monkeypatch):
    """The launches of a test: names of kernels and their options."""
    launches = []
    select_grid = KernelInterface.__getitem__

    def record(kernel, grid):
        run = select_grid(kernel, grid)

        def launch(*args, **kwargs):
            launches.append((kernel.__name__.removesuffix('_kernel'), kwargs))
            return run(*args, **kwargs)

        return launch

    monkeypatch.setattr(KernelInterface, '__getitem__', record)
    return launches


ATTENTION_SETS = [['q'], ['k'], ['v'], ['key_position']]
WANTED = {
    'power': [*ATTENTION_SETS, ['exponent'], ['scale'], ['q', 'scale']],
    'rotary': [*ATTENTION_SETS, ['same'], ['opposite'], ['q', 'opposite']],
    'mix_and_gate': [['attended'], ['values'], ['gate'], ['weight'], ['bias'], ['values', 'bias']],
}


@pytest.mark.parametrize('kind', KINDS)
def test_gradients_computed_alone_are_the_same(kind, monkeypatch):
    problem = draw(kind)
    everything = results(problem)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        for wanted in WANTED[kind]:
            assert_equal(results(problem, wanted), everything)
    finally:
        torch.use_deterministic_algorithms(False)


FORWARD = ['state', 'combine_states', 'output']
TO_STATE = [*FORWARD, 'query_gradient', 'combine_states']


@pytest.mark.parametrize(
    ('kind', 'wanted', 'kernels'),
    [
        ('power', ['q'], [*FORWARD, 'query_gradient']),
        ('power', ['v'], [*TO_STATE, 'key_gradient']),
        ('power', ['scale'], [*TO_STATE, 'parameters']),
        ('power', ['exponent'], [*TO_STATE, 'key_gradient', 'parameters']),
        ('rotary', ['same'], [*FORWARD, 'query_gradient']),
        ('rotary', ['key_position'], [*TO_STATE, 'key_gradient']),
        ('mix_and_gate', ['attended'], ['mix_and_gate']),
        ('mix_and_gate', ['values'], ['mix_and_gate'] * 2),
        ('mix_and_gate', ['bias'], ['mix_and_gate', 'mix_and_gate_taps']),
    ],
)
def test_only_what_is_wanted_is_launched(kind, wanted, kernels, launched):
    """And every launch asks for fused multiply-adds, which Triton 3.10 leaves out by default."""
    results(draw(kind, tokens=48), wanted)
    names = []
    for name, options in launched:
        names.append(
            name.removeprefix('polarity_attention_').removeprefix('power_').removeprefix('exp_')
        )
        assert options['enable_fp_fusion'] is True
    assert names == kernels


def test_a_state_of_one_chunk_is_not_combined(launched):
    results(draw('power'))
    assert 'combine_states' not in [name for name, _ in launched]


@pytest.mark.parametrize('kind', KINDS)
def test_checkpointing_and_autocast_change_nothing(kind):
    problem = draw(kind, torch.float16)
    expected = results(problem)
    leaves = {name: x.detach().requires_grad_() for name, x in problem.tensors.items()}
    grad = torch.randn(expected['output'].shape, generator=torch.Generator().manual_seed(0))
    with torch.autocast(DEVICE, torch.bfloat16):
        output = checkpoint(lambda: call(problem, leaves), use_reentrant=False)
        found = torch.autograd.grad(output, list(leaves.values()), grad.to(output))
    assert_equal(dict(zip(leaves, found, strict=True)) | {'output': output}, expected)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('batch', 'tokens'), [(0, 12), (2, 0)])
def test_empty_inputs(kind, batch, tokens):
    problem = draw(kind, tokens=12, batch=batch)
    if tokens == 0 and kind == 'mix_and_gate':
        problem = draw(kind, tokens=0, batch=batch)
    elif tokens == 0:
        problem.tensors['q'] = problem.tensors['q'][:, :0]
        inputs = problem.build
        problem = replace(problem, build=lambda **x: without_rotary(inputs(**x)))
    found = results(problem)
    for name, x in problem.tensors.items():
        assert found[name].shape == x.shape
        assert not found[name].any()


def without_rotary(inputs):
    """Rotary tables need as many keys as queries."""
    return type(inputs)(*inputs.tensors()[:3], inputs.feature_map, inputs.key_position, None, 1e-6)


@pytest.mark.parametrize('kind', ['power', 'mix_and_gate'])
def test_second_and_batched_derivatives_are_refused(kind):
    problem = draw(kind)
    name = 'values' if kind == 'mix_and_gate' else 'q'
    leaf = problem.tensors[name].requires_grad_()
    output = call(problem, problem.tensors)
    (first,) = torch.autograd.grad(output.sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert str(raised.value) == "backend 'triton' has no second derivative: choose backend='torch'"
    with pytest.raises(RuntimeError, match="choose backend='torch'"):
        torch.autograd.grad(output, leaf, torch.stack([output] * 2), is_grads_batched=True)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_opcheck_of_attention(kind):
    inputs = draw(kind).build(**{n: x.requires_grad_() for n, x in draw(kind).tensors.items()})
    rotary = (None, None)
    if kind == 'exp':
        rotary = draw('rotary').build(**draw('rotary').tensors).rotary
    arguments = (*inputs.tensors(), *rotary, 1e-6, kind)
    torch.library.opcheck(functions.attention.operator, arguments)
    with torch.no_grad():
        output, state = functions.attention.operator(*arguments)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    backward = (*detached, torch.randn_like(output), state, [True] * 6)
    torch.library.opcheck(functions.attention.gradient_operator, backward)


@pytest.mark.parametrize('has_bias', [True, False])
def test_opcheck_of_mix_and_gate(has_bias):
    tensors = list(draw('mix_and_gate').tensors.values())
    wanted = [True] * 5
    if not has_bias:
        tensors[-2] = tensors[-2][..., :1, :1]  # its taps have its own layout, but not its memory
        tensors[-1] = None
        wanted = [False, True, False, False, False]
    output, taps = functions.mixing.operator(*tensors, 3, 4)
    backward = (*tensors, 3, 4, torch.randn_like(output), taps, wanted)
    torch.library.opcheck(functions.mixing.gradient_operator, backward)
    leaves = [None if x is None else x.requires_grad_() for x in tensors]
    torch.library.opcheck(functions.mixing.operator, (*leaves, 3, 4))


def compiled(function, **options):
    """Compile a function without breaks; return it, and the list of its graphs."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    return torch.compile(function, fullgraph=True, backend=keep, **options), graphs


@pytest.mark.parametrize('kind', ['power', 'exp', 'mix_and_gate'])
def test_compiles_as_one_graph_once(kind):
    def run(leaves, grid):
        if kind == 'mix_and_gate':
            return mix_and_gate(*leaves.values(), grid, backend='triton')
        return call(problem, leaves)

    traced, graphs = compiled(run, dynamic=True)
    for grid in ((3, 5), (3, 7), (3, 6)):
        problem = draw(kind, tokens=grid[0] * grid[1])
        found = traced(problem.tensors, grid)
        assert torch.equal(found, run(problem.tensors, grid))
    assert len(graphs) == 1


@pytest.mark.parametrize('kind', ['power', 'mix_and_gate'])
def test_compiles_with_gradients(kind):
    problem = draw(kind)
    leaves = {name: x.detach().requires_grad_() for name, x in problem.tensors.items()}
    traced = torch.compile(
        lambda leaves: call(problem, leaves), fullgraph=True, backend='aot_eager'
    )
    found = torch.autograd.grad(traced(leaves).sum(), list(leaves.values()))
    expected = torch.autograd.grad(call(problem, leaves).sum(), list(leaves.values()))
    for name, x, y in zip(leaves, found, expected, strict=True):
        assert torch.equal(x, y), name


FLOPS = {'power': 4 * 2 * (12 + 12) * 16 * 16, 'mix_and_gate': 2 * 12 * 32 * 3 * 3}
"""Of a forward call: two products with a [2D, D] matrix per token of 2 heads; a convolution."""


@pytest.mark.parametrize(('kind', 'step'), [('power', 3), ('mix_and_gate', 4)])
def test_flop_counter_sees_the_products(kind, step):
    problem = draw(kind)
    leaves = {name: x.detach().requires_grad_() for name, x in problem.tensors.items()}
    with FlopCounterMode(display=False) as counter:
        output = call(problem, leaves)
        assert counter.get_total_flops() == FLOPS[kind]
        output.sum().backward()
    assert counter.get_total_flops() == step * FLOPS[kind]


def test_unsupported_inputs_are_refused_with_every_reason():
    with pytest.raises(RuntimeError) as raised:
        results(attention_problem(
            torch.device(DEVICE), torch.float64, 66, feature_map='PowerMap', batch=1, queries=8,
            keys=8, heads=2,
        ))  # fmt: skip
    assert str(raised.value) == (
        "backend 'triton' cannot run: q: expected float16, bfloat16 or float32, got float64; "
        'q: expected a head dimension D <= 64, got D=66'
    )
    with pytest.raises(RuntimeError, match='attended: expected float16, bfloat16 or float32'):
        results(draw('mix_and_gate', torch.float64))
    problem = draw('power')
    others = {name: x for name, x in problem.tensors.items() if name != 'q'}
    with pytest.raises(RuntimeError, match='tracers and exporters can record plain PyTorch'):
        torch.jit.trace(lambda q: call(problem, {'q': q, **others}), problem.tensors['q'])


LARGEST_SHARE = passes.LARGEST_SHARE
SHAPES = {
    'Pola-PVT-T stage 1, 800x1333': (2, 66800, 1, 64),
    'Pola-PVT-T stage 4, 800x1333': (2, 1050, 8, 64),
    'Pola-Swin-T stage 2, 224x224': (64, 784, 6, 32),
    'more heads than the second axis of a grid can have': (16384, 100, 8, 16),
}


@pytest.mark.parametrize('name', ['state', 'query_gradient'])
@pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)
def test_the_split_fills_an_h100_or_the_share_of_partial_states(shape, name, monkeypatch):
    monkeypatch.setattr(passes, 'processors_of', lambda device: 132)
    monkeypatch.setattr(passes, 'LARGEST_SHARE', LARGEST_SHARE)
    size = torch.Size(shape)
    plan = passes.plan_pass(name, 'power', False, size, torch.float16, torch.device('meta'), 'tf32')
    rows, chunks = plan.grid
    assert rows == shape[0] * shape[2]
    rounds = rows * chunks / (132 * power.LAUNCHES[name, shape[3]].programs)
    states = 2 * 4 * chunks * rows * 2 * shape[3] * (shape[3] + 1)
    share = 100 * states / (4 * 2 * size.numel())
    assert chunks == 1 or share <= LARGEST_SHARE
    assert rounds >= 0.9 * -(-rounds // 1) or share > 0.75 * LARGEST_SHARE


WIDTHS = {
    'embed_dims': (16, 16, 16, 32), 'depths': (1,) * 4, 'num_heads': (1, 1, 1, 2),
    'mlp_ratios': (1,) * 4,
}  # fmt: skip
LAYER_SCALE = {'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4}


@pytest.mark.parametrize(
    ('backbone', 'arch'),
    [(PolaPVT, WIDTHS), (PolaFormerPP, WIDTHS | LAYER_SCALE)],
    ids=['PolaPVT', 'PolaFormerPP'],
)
def test_gradients_of_a_backbone_equal_those_of_the_reference(backbone, arch):
    images = torch.randn(2, 3, 32, 32, device=DEVICE)
    gradients = {}
    for backend in ('triton', 'torch'):
        torch.manual_seed(1)
        model = backbone(arch, attn_types='LLSS', drop_path_rate=0.0, backend=backend).to(DEVICE)
        loss = sum(x.square().mean() for x in model(images))
        loss.backward()
        gradients[backend] = {name: x.grad for name, x in model.named_parameters()}
    for name, expected in gradients['torch'].items():
        torch.testing.assert_close(gradients['triton'][name], expected, rtol=2e-3, atol=1e-5)
