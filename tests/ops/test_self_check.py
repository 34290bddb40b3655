"""The self-check of `backend='auto'`, with a substitute for the kernels on the CPU."""

import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmpola.ops import PowerMap, api, mix_and_gate, polarity_attention, self_check
from mmpola.ops.api import Backend
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton import backend as triton_backend

GRID = (3, 4)


class Kernels:
    """A backend for the CPU: the reference, with the values' gradient multiplied by `error`; it
    counts its calls.
    """

    def __init__(self, monkeypatch, error=1.0, unsupported=()):
        self.runs, self.error = 0, error
        fast = Backend(
            'fast',
            list,
            lambda inputs: list(unsupported),
            self.polarity_attention,
            self.mix_and_gate,
            'cpu',
        )
        monkeypatch.setattr(api, 'BACKENDS', (fast, api.BACKENDS[-1]))
        monkeypatch.setattr(self_check, '_results', {})
        monkeypatch.setattr(self_check, '_logged', set())

    def polarity_attention(self, inputs):
        self.runs += 1
        return polarity_attention_chunked(replace(inputs, v=self.wrong(inputs.v)))

    def mix_and_gate(self, inputs):
        self.runs += 1
        return mix_and_gate_reference(replace(inputs, values=self.wrong(inputs.values)))

    def wrong(self, x):
        return self.error * x + (1 - self.error) * x.detach()


def attend(dtype=torch.float32, dim=4):
    q, k, v = torch.randn(3, 1, 12, 2, dim, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return polarity_attention(q, k, v, PowerMap(torch.full((2, dim), 2.0)))


def mix(dtype=torch.float32, dim=4):
    attended, values = torch.randn(2, 1, 12, 2, dim, dtype=dtype)
    gate = torch.randn(1, 12, 2 * dim, dtype=dtype)
    return mix_and_gate(attended, values, gate, torch.ones(dim, 1, 3, 3), None, GRID)


@pytest.mark.parametrize('operator', [attend, mix])
def test_kernels_that_agree_are_used_after_one_check(operator, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    operator()
    assert kernels.runs == 2  # the check and the call
    operator()
    assert kernels.runs == 3
    operator(dtype=torch.float16)
    assert kernels.runs == 5
    operator(dim=6)
    assert kernels.runs == 7
    assert not caplog.messages


@pytest.mark.parametrize(
    ('operator', 'kind', 'argument'), [(attend, 'PowerMap', 'v'), (mix, 'mix_and_gate', 'values')]
)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_kernels_that_disagree_are_not_used_and_logged_once(
    operator, kind, argument, dtype, monkeypatch, caplog
):
    kernels = Kernels(monkeypatch, error=1.1)
    for _ in range(2):
        operator(dtype)
    assert kernels.runs == 1
    (record,) = caplog.records
    assert (record.name, record.levelno) == ('mmpola', logging.WARNING)
    assert re.fullmatch(
        f"backend='auto' does not use 'fast': self-check of {kind}, {str(dtype)[6:]}, D=4, "
        'on cpu failed: '
        rf'error of the gradient of {argument} is 1\.0e-01, allowed is \d\.\de-\d\d',
        record.message,
    )


def test_kernels_that_return_nan_are_not_used(monkeypatch, caplog):
    Kernels(monkeypatch, error=float('nan'))
    attend()
    assert 'error of the output is nan' in caplog.text


def test_kernels_that_do_not_compile_are_not_used(monkeypatch, caplog):
    kernels = Kernels(monkeypatch)

    def fail(x):
        raise ValueError('no such instruction')

    monkeypatch.setattr(kernels, 'wrong', fail)
    assert torch.isfinite(attend()).all()
    assert caplog.messages == [
        "backend='auto' does not use 'fast': self-check of PowerMap, float32, D=4, on cpu failed: "
        'ValueError: no such instruction'
    ]


def test_kernels_whose_gradient_cannot_be_launched_are_not_used(monkeypatch, caplog):
    """As where a kernel of the backward pass needs more shared memory than the GPU has."""
    kernels = Kernels(monkeypatch)

    def fail(grad):
        raise ValueError('out of resource: shared memory, Required: 114688, Hardware limit: 101376')

    def wrong(x):
        x = x.clone()
        if x.requires_grad:
            x.register_hook(fail)
        return x

    monkeypatch.setattr(kernels, 'wrong', wrong)
    q = torch.randn(1, 12, 2, 4, requires_grad=True)
    polarity_attention(q, q, q, PowerMap(torch.full((2, 4), 2.0))).sum().backward()
    assert 'Required: 114688, Hardware limit: 101376' in caplog.text


@pytest.mark.parametrize(
    'inside', [torch.no_grad, torch.inference_mode, lambda: torch.autocast('cpu', torch.bfloat16)]
)
def test_the_check_is_independent_of_the_callers_context(inside, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    with inside():
        attend()
        mix()
    assert kernels.runs == 4
    assert not caplog.messages


def test_the_check_changes_no_random_numbers_and_counts_no_flops(monkeypatch):
    kernels = Kernels(monkeypatch)
    state = torch.random.get_rng_state()
    counts = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            attend()
        counts.append(counter.get_total_flops())
    assert kernels.runs == 3  # the check ran in the first count
    assert counts[0] == counts[1] > 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_activation_checkpointing_around_the_check(monkeypatch):
    kernels = Kernels(monkeypatch)
    q = torch.randn(1, 12, 2, 4, requires_grad=True)
    checkpoint(
        lambda q: polarity_attention(q, q, q, PowerMap(torch.full((2, 4), 2.0))),
        q,
        use_reentrant=False,
    ).sum().backward()
    assert kernels.runs == 3
    assert torch.isfinite(q.grad).all()


def test_no_check_while_a_graph_is_captured(monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    with monkeypatch.context() as capturing:
        capturing.setattr(self_check, '_is_capturing', lambda device: True)
        attend()
    assert kernels.runs == 0
    assert caplog.messages == [
        "backend='auto' does not use 'fast': a CUDA graph is captured, which allows no self-check; "
        'run the model once before'
    ]
    attend()
    assert kernels.runs == 2


def test_unsupported_inputs_are_logged_once(monkeypatch, caplog):
    kernels = Kernels(monkeypatch, unsupported=['q: too odd', 'q: too even'])
    attend()
    attend()
    assert kernels.runs == 0
    assert caplog.messages == [
        f"backend='auto' does not use 'fast': q: too {how}" for how in ('odd', 'even')
    ]


def test_cpu_tensors_use_the_reference_without_a_message(monkeypatch, caplog):
    monkeypatch.setattr(triton_backend, 'missing', lambda: pytest.fail('asked'))
    attend()
    mix()
    assert not caplog.messages


@pytest.fixture
def old_gpus(monkeypatch):
    """Let torch see two GPUs of compute capability 7.5."""
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (7, 5))
    self_check._highest_compute_capability.cache_clear()
    yield
    self_check._highest_compute_capability.cache_clear()


@pytest.mark.usefixtures('old_gpus')
@pytest.mark.parametrize('device', [None, torch.device('cuda', 1)])
def test_compilers_take_the_compute_capability_as_a_constant(device):
    def run(x):
        return x + len(triton_backend._too_low_capability(device))

    compiled = torch.compile(run, fullgraph=True, backend='eager')
    assert compiled(torch.zeros(1)) == len('7.5')


@pytest.mark.usefixtures('old_gpus')
def test_a_gpu_that_is_too_old_is_a_reason(monkeypatch):
    monkeypatch.setattr(triton_backend, 'IS_INTERPRETED', False)
    monkeypatch.setattr(triton_backend, 'HAS_TRITON', True)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    assert triton_backend.missing() == [
        'a GPU of compute capability 8.0 or more is needed, the best here has 7.5'
    ]
    q = SimpleNamespace(
        device=torch.device('cuda:0'), is_cuda=True, dtype=torch.float16, shape=(1, 4, 1, 16)
    )
    inputs = AttentionInputs(q, q, q, None, None, None, 1e-6)
    assert triton_backend.unsupported(inputs) == [
        'q: expected a GPU of compute capability 8.0 or more, got 7.5'
    ]
    monkeypatch.setattr(
        torch.cuda, 'get_device_capability', lambda device: (9, 0) if device == 1 else (7, 5)
    )
    self_check._highest_compute_capability.cache_clear()
    assert triton_backend.missing() == []
