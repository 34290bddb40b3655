"""`backend='auto'` on the kernels themselves: it takes them where the self-check passes, in a traced caller too.

Not collected by itself: `test_triton.py` runs this file in a process of its own with TRITON_INTERPRET=1, where 'auto'
is told to consider CPU tensors. On a machine with a GPU run it directly:

    python -m pytest tests/ops/automatic_cases.py
"""

import os
from dataclasses import replace

import pytest
import torch

from mmpola.ops import ExpMap, PowerMap, backends, mix_and_gate, polarity_attention, self_check
from mmpola.ops.triton import epilogue_operator, operator

DEVICE = 'cpu' if os.environ.get('TRITON_INTERPRET') == '1' else 'cuda'
GRID = (3, 4)


@pytest.fixture(autouse=True)
def _unproved(monkeypatch):
    triton, reference = backends.BACKENDS
    monkeypatch.setattr(backends, 'BACKENDS', (replace(triton, automatic_on=DEVICE), reference))
    monkeypatch.setattr(self_check, '_verdicts', {})
    monkeypatch.setattr(self_check, '_told', set())


@pytest.fixture
def told(caplog):
    """What mmpola has logged."""
    return lambda: [record.message for record in caplog.records if record.name == 'mmpola']


def draw(dtype=torch.float32, dim=16):
    """q, k, v [B, N, H, D] on GRID and the gate."""
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


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32], ids=['fp16', 'bf16', 'fp32'])
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_attention_proves_itself(kind, dtype, told):
    q, k, v, _ = draw(dtype)
    arguments = dict(rotary=rotary()) if kind == 'exp' else dict(key_position=torch.zeros_like(k[0]).float())
    found = polarity_attention(q, k, v, feature_map(kind), **arguments)
    assert not told()
    assert torch.equal(found, polarity_attention(q, k, v, feature_map(kind), **arguments, backend='triton'))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32], ids=['fp16', 'bf16', 'fp32'])
def test_epilogue_proves_itself(dtype, told):
    attended, values, _, gate = draw(dtype)
    found = mix_and_gate(attended, values, gate, *kernel(), GRID)
    assert found.dtype == dtype
    assert not told()
    assert list(self_check._verdicts.values()) == ['']


def test_tf32_products_are_allowed_their_noise(monkeypatch, told):
    """With torch's switch on, products of float32 err as those of half inputs do."""
    monkeypatch.setattr('mmpola.ops.triton.launch.product_precision', lambda dtype: 'tf32')
    q, k, v, _ = draw()
    polarity_attention(q, k, v, feature_map('power'))
    assert not told()


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_a_wrong_attention_gradient_is_found(dtype, monkeypatch, told):
    right = operator.key_gradient

    def wrong(*args):
        dk, dv, parameters = right(*args)
        return dk, None if dv is None else 1.1 * dv, parameters

    monkeypatch.setattr(operator, 'key_gradient', wrong)
    q, k, v, _ = draw(dtype)
    found = polarity_attention(q, k, v, feature_map('power'))
    assert 'gradient of v errs by 1.0e-01' in told()[0]
    assert torch.equal(found, polarity_attention(q, k, v, feature_map('power'), backend='reference'))


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_a_wrong_convolution_is_found(dtype, monkeypatch, told):
    monkeypatch.setattr(epilogue_operator, '_taps', lambda weight: weight.flatten(1).T.flip(0).contiguous())
    attended, values, _, gate = draw(dtype)
    weight, bias = kernel()
    found = mix_and_gate(attended, values, gate, weight, bias, GRID)
    assert 'self-check of mix_and_gate' in told()[0]
    assert 'output errs by' in told()[0]
    assert torch.equal(found, mix_and_gate(attended, values, gate, weight, bias, GRID, backend='reference'))


@pytest.mark.parametrize('dynamic', [False, True])
def test_a_traced_caller_takes_the_kernels(dynamic, told):
    """First met while torch.compile traces: the check runs then and there, and the graph holds its answer."""
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
    assert not told()


def test_a_traced_caller_falls_back_in_one_graph(told):
    tensors = [x.double() for x in (*draw(), *kernel())]
    found = torch.compile(block, fullgraph=True, backend='eager', dynamic=True)(*tensors)
    torch.testing.assert_close(found, block(*tensors, backend='reference'))
    assert sorted(told()) == [
        f"backend='auto' does without 'triton': {name}: expected float16, bfloat16 or float32, got float64"
        for name in ('attended', 'q')
    ]
