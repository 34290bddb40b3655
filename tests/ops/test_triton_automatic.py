"""`backend='auto'` uses the kernels where it trusts them, under tracing too."""

from dataclasses import replace

import pytest
import torch

from mmpola.kernels import record
from mmpola.ops import (
    ExpMap,
    PowerMap,
    api,
    available_backends,
    mix_and_gate,
    polarity_attention,
)
from tests.helpers.attention import DEVICE

pytestmark = pytest.mark.kernels

GRID = (3, 4)


@pytest.fixture(autouse=True)
def _trusted(monkeypatch):
    triton, plain = api.BACKENDS
    trusted = replace(triton, device_type=DEVICE, distrusted=lambda inputs: [])
    monkeypatch.setattr(api, 'BACKENDS', (trusted, plain))
    monkeypatch.setattr(record, '_logged', set())


@pytest.fixture
def logged(caplog):
    """A function that returns the messages logged by mmpola."""
    return lambda: [record.message for record in caplog.records if record.name == 'mmpola']


def draw(dtype=torch.float32, dim=16):
    """Draw q, k, v [B, N, H, D] on GRID and the gate."""
    tensors = torch.randn(4, 1, 12, 2, dim).to(DEVICE, dtype)
    return [*tensors[:3], tensors[3].flatten(2)]


def feature_map(kind, dim=16):
    ones = torch.ones(2, 2 * dim, device=DEVICE)
    return ExpMap(ones / 2, ones) if kind == 'exp' else PowerMap(2 * ones[:, :dim], ones[:, :dim])


def rotary(dim=16):
    angle = torch.rand(12, dim, device=DEVICE).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def block(q, k, v, gate, weight, bias, backend='auto'):
    attended = polarity_attention(q, k, v, feature_map('power'), backend=backend)
    return mix_and_gate(attended, v, gate, weight, bias, GRID, backend=backend)


def kernel(dim=16):
    return torch.randn(dim, 1, 3, 3, device=DEVICE), torch.randn(dim, device=DEVICE)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_attention_uses_the_kernels(kind, logged):
    assert available_backends() == ['triton', 'torch']
    q, k, v, _ = draw(torch.float16)
    arguments = {}
    if kind == 'exp':
        arguments['rotary'] = rotary()
    found = polarity_attention(q, k, v, feature_map(kind), **arguments)
    assert not logged()
    assert torch.equal(
        found, polarity_attention(q, k, v, feature_map(kind), **arguments, backend='triton')
    )


@pytest.mark.parametrize('dynamic', [False, True])
def test_a_traced_caller_uses_the_kernels(dynamic, logged):
    """torch.compile takes the choice as a constant."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    tensors = [*draw(), *kernel()]
    state = torch.random.get_rng_state()
    found = torch.compile(block, fullgraph=True, backend=keep, dynamic=dynamic)(*tensors)
    assert torch.equal(torch.random.get_rng_state(), state)
    called = {str(node.target) for node in graphs[0].graph.nodes}
    assert {'mmpola.polarity_attention.default', 'mmpola.mix_and_gate.default'} <= called
    assert torch.equal(found, block(*tensors, backend='triton'))
    assert not logged()


def test_a_traced_caller_falls_back_in_one_graph(logged):
    tensors = [x.double() for x in (*draw(), *kernel())]
    found = torch.compile(block, fullgraph=True, backend='eager', dynamic=True)(*tensors)
    torch.testing.assert_close(found, block(*tensors, backend='torch'))
    assert sorted(logged()) == [
        f"backend='auto' does not use 'triton': {name}: expected float16, bfloat16 or float32, "
        'got float64'
        for name in ('attended', 'q')
    ]
