"""`backend='auto'` with the kernels themselves: it uses them where the self-check passes, under
tracing too.
"""

from dataclasses import replace

import pytest
import torch

from mmpola.ops import ExpMap, PowerMap, api, mix_and_gate, polarity_attention, self_check
from mmpola.ops.triton import mix_and_gate as triton_mix_and_gate
from mmpola.ops.triton import power_passes
from tests.helpers.attention import DEVICE

pytestmark = pytest.mark.kernels

GRID = (3, 4)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    triton, plain = api.BACKENDS
    monkeypatch.setattr(api, 'BACKENDS', (replace(triton, automatic_on=DEVICE), plain))
    monkeypatch.setattr(self_check, '_results', {})
    monkeypatch.setattr(self_check, '_logged', set())


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


@pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16, torch.float32], ids=['fp16', 'bf16', 'fp32']
)
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_attention_passes_its_check(kind, dtype, logged):
    q, k, v, _ = draw(dtype)
    arguments = (
        dict(rotary=rotary())
        if kind == 'exp'
        else dict(key_position=torch.zeros_like(k[0]).float())
    )
    found = polarity_attention(q, k, v, feature_map(kind), **arguments)
    assert not logged()
    assert torch.equal(
        found, polarity_attention(q, k, v, feature_map(kind), **arguments, backend='triton')
    )


@pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16, torch.float32], ids=['fp16', 'bf16', 'fp32']
)
def test_mix_and_gate_passes_its_check(dtype, logged):
    attended, values, _, gate = draw(dtype)
    found = mix_and_gate(attended, values, gate, *kernel(), GRID)
    assert found.dtype == dtype
    assert not logged()
    assert list(self_check._results.values()) == ['']


def test_tf32_products_may_have_tf32_noise(monkeypatch, logged):
    """With torch's switch on, float32 products are as inaccurate as those of half inputs."""
    monkeypatch.setattr('mmpola.ops.triton.launch.product_precision', lambda dtype: 'tf32')
    q, k, v, _ = draw()
    polarity_attention(q, k, v, feature_map('power'))
    assert not logged()


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_a_wrong_attention_gradient_is_found(dtype, monkeypatch, logged):
    right = power_passes._key_gradient

    def wrong(*args):
        dk, dv, parameters = right(*args)
        return dk, None if dv is None else 1.1 * dv, parameters

    monkeypatch.setattr(power_passes, '_key_gradient', wrong)
    q, k, v, _ = draw(dtype)
    found = polarity_attention(q, k, v, feature_map('power'))
    assert 'error of the gradient of v is 1.0e-01' in logged()[0]
    assert torch.equal(found, polarity_attention(q, k, v, feature_map('power'), backend='torch'))


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_a_wrong_convolution_is_found(dtype, monkeypatch, logged):
    monkeypatch.setattr(
        triton_mix_and_gate,
        '_taps',
        lambda weight: weight.squeeze(1).permute(1, 2, 0).flip(0, 1).contiguous(),
    )
    attended, values, _, gate = draw(dtype)
    weight, bias = kernel()
    found = mix_and_gate(attended, values, gate, weight, bias, GRID)
    assert 'self-check of mix_and_gate' in logged()[0]
    assert 'error of the output is' in logged()[0]
    assert torch.equal(
        found, mix_and_gate(attended, values, gate, weight, bias, GRID, backend='torch')
    )


@pytest.mark.parametrize('dynamic', [False, True])
def test_a_traced_caller_uses_the_kernels(dynamic, logged):
    """The check runs while torch.compile traces, and the graph contains its result."""
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
