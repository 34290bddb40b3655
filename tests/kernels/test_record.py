"""`backend='auto'` follows the record of `mmpola gpu`; a substitute for the kernels runs on the
CPU.
"""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmpola.kernels import record
from mmpola.kernels.check import all_cases
from mmpola.ops import ExpMap, PowerMap, api, mix_and_gate, polarity_attention
from mmpola.ops import triton as triton_backend
from mmpola.ops.api import Backend
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.reference import mix_and_gate_reference

GRID = (3, 4)
DEVICE = torch.device('cpu')


def right_results():
    """A record in which all kernels are right and twice as fast."""
    return {
        str(case): {'failure': '', 'speedup': {'784': 2.0, '16700': 2.0}} for case in all_cases()
    }


@pytest.fixture(autouse=True)
def _gpu(monkeypatch, tmp_path):
    """Give the CPU a name and an empty cache folder, as a GPU without a record has."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'Some GPU/80GB')
    monkeypatch.setattr(record, '_logged', set())
    cached = record.results_on
    cached.cache_clear()
    yield
    cached.cache_clear()


def write_record(results):
    path = record.record_path(DEVICE)
    path.parent.mkdir(parents=True, exist_ok=True)
    record.write_record(DEVICE, results)
    return path


class Kernels:
    """A backend for the CPU that counts its calls."""

    def __init__(self, monkeypatch, unsupported=()):
        self.runs = 0
        fast = Backend(
            'fast',
            list,
            lambda inputs: list(unsupported),
            self.polarity_attention,
            self.mix_and_gate,
            'cpu',
            record.distrusted,
        )
        monkeypatch.setattr(api, 'BACKENDS', (fast, api.BACKENDS[-1]))

    def polarity_attention(self, inputs):
        self.runs += 1
        return polarity_attention_chunked(inputs)

    def mix_and_gate(self, inputs):
        self.runs += 1
        return mix_and_gate_reference(inputs)


def attend(dtype=torch.float32, dim=16, rotary=None):
    q, k, v = torch.randn(3, 1, 12, 2, dim, dtype=dtype, generator=torch.Generator().manual_seed(0))
    feature_map = PowerMap(torch.full((2, dim), 2.0))
    if rotary:
        feature_map = ExpMap(torch.ones(2, 2 * dim), torch.ones(2, 2 * dim))
    return polarity_attention(q, k, v, feature_map, rotary=rotary)


def mix(dtype=torch.float32, dim=16):
    attended, values = torch.randn(2, 1, 12, 2, dim, dtype=dtype)
    gate = torch.randn(1, 12, 2 * dim, dtype=dtype)
    return mix_and_gate(attended, values, gate, torch.ones(dim, 1, 3, 3), None, GRID)


@pytest.mark.parametrize('operator', [attend, mix])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_that_are_right_and_faster_are_used(operator, dtype, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    write_record(right_results())
    operator(dtype)
    operator(dtype, dim=24)
    assert kernels.runs == 2
    assert not caplog.messages


def test_without_a_record_there_is_one_line(monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    attend()
    mix(torch.float16)
    assert kernels.runs == 0
    (logged,) = caplog.records
    assert (logged.name, logged.levelno) == ('mmpola', logging.WARNING)
    assert logged.message == f"backend='auto' does not use 'fast': {record.UNCHECKED}"


@pytest.mark.parametrize(
    ('holder', 'name', 'value'),
    [
        (torch.cuda, 'get_device_name', lambda device: 'Some GPU/40GB'),
        (torch, '__version__', '2.99.0'),
        (record.importlib.metadata, 'version', lambda package: '9.9'),
        (record, 'kernels_hash', lambda: 'other kernels'),
    ],
    ids=['gpu', 'torch', 'triton', 'kernels'],
)
def test_a_record_of_something_else_is_ignored(holder, name, value, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    write_record(right_results())
    with monkeypatch.context() as changed:
        changed.setattr(holder, name, value)
        attend()
    assert kernels.runs == 0
    assert record.UNCHECKED in caplog.text


def test_other_source_of_the_kernels_has_another_hash(monkeypatch, tmp_path):
    source = tmp_path / 'power.py'
    monkeypatch.setattr(triton_backend, '__file__', str(source))
    hashes = set()
    for text in ('x = 1', 'x = 2', 'x = 1'):
        source.write_text(text)
        hashes.add(record.kernels_hash.__wrapped__())
    assert len(hashes) == 2


@pytest.mark.parametrize('content', ['', '{"power, ', '[1]', 'null'])
def test_a_damaged_record_is_none(content, monkeypatch):
    kernels = Kernels(monkeypatch)
    write_record(right_results()).write_text(content)
    attend()
    assert kernels.runs == 0


@pytest.mark.parametrize(
    ('changed', 'reason'),
    [
        ({'failure': 'the error of the output is 3.0 times the budget'}, 'the error of the output'),
        ({'speedup': {'784': 0.9, '16700': 2.0}}, 'not faster than plain PyTorch on this GPU'),
    ],
)
def test_kernels_that_are_wrong_or_slower_are_not_used(changed, reason, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    results = right_results()
    for case, result in results.items():
        if case.startswith('power, float16'):
            result.update(changed)
    write_record(results)
    attend(torch.float16)
    assert kernels.runs == 0
    (message,) = caplog.messages
    assert message.startswith(f"backend='auto' does not use 'fast': power, float16, D=16: {reason}")
    attend(torch.float32)
    mix(torch.float16)
    assert kernels.runs == 2


def test_every_kind_of_call_has_its_result(monkeypatch):
    """Operator, head dimension, padding and precision of the products select the result."""
    asked = []

    class Asked(dict):
        def __getitem__(self, case):
            asked.append(case)
            return super().__getitem__(case)

    monkeypatch.setattr(record, 'results_on', lambda device: Asked(right_results()))
    Kernels(monkeypatch)
    attend()
    attend(dim=24)
    attend(torch.float16, rotary=(torch.ones(12, 32), torch.zeros(12, 32)))
    mix(dim=64)
    monkeypatch.setattr(record, 'product_precision', lambda dtype: 'tf32')
    attend()
    mix()
    assert asked == [
        'power, float32, D=16',
        'power, float32, D=32',
        'power, float32, D=40',
        'rotary, float16, D=16',
        'mix_and_gate, float32, D=64',
        'power, float32 in tf32, D=16',
        'mix_and_gate, float32, D=16',
    ]


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('has_record', [False, True])
def test_a_compiled_caller_follows_the_record(has_record, dynamic, monkeypatch, caplog):
    kernels = Kernels(monkeypatch)
    if has_record:
        write_record(right_results())

    def run(q, power):
        return polarity_attention(q, q, q, PowerMap(power))

    torch.compiler.reset()  # of the other variants of this test
    q = torch.randn(1, 12, 2, 16)
    power = torch.full((2, 16), 2.0)
    compiled = torch.compile(run, fullgraph=True, backend='eager', dynamic=dynamic)
    torch.testing.assert_close(compiled(q, power), run(q, power))
    messages = [line.message for line in caplog.records if line.name == 'mmpola']
    if has_record:
        assert kernels.runs == 2  # once while it was traced
        assert not messages
    else:
        assert kernels.runs == 0
        assert len(messages) == 1


def test_vmap_checkpointing_and_counting_follow_the_record(monkeypatch):
    kernels = Kernels(monkeypatch)
    write_record(right_results())
    q = torch.randn(3, 1, 12, 2, 16, requires_grad=True)
    power = torch.full((2, 16), 2.0)

    def run(q):
        return polarity_attention(q, q, q, PowerMap(power))

    mapped = torch.func.vmap(run)(q)
    torch.testing.assert_close(mapped, torch.stack([run(x) for x in q]))
    assert kernels.runs == 4
    checkpoint(run, q[0], use_reentrant=False).sum().backward()
    assert kernels.runs == 6
    assert torch.isfinite(q.grad).all()
    with FlopCounterMode(display=False) as counter:
        run(q[0])
    assert kernels.runs == 7
    assert counter.get_total_flops() > 0


def test_a_captured_call_asks_nothing_of_the_gpu(monkeypatch):
    """The record is read without a launch, so also while a CUDA graph is captured."""
    kernels = Kernels(monkeypatch)
    write_record(right_results())
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda *args: pytest.fail('synchronised'))
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: True)
    attend()
    assert kernels.runs == 1


def test_unsupported_inputs_are_logged_once(monkeypatch, caplog):
    kernels = Kernels(monkeypatch, unsupported=['q: too odd', 'q: too even'])
    attend()
    attend()
    assert kernels.runs == 0
    assert caplog.messages == [
        f"backend='auto' does not use 'fast': q: too {how}" for how in ('odd', 'even')
    ]


def test_two_backends_of_one_device_are_asked_in_their_order(monkeypatch):
    Kernels(monkeypatch)
    first, plain = api.BACKENDS
    second = replace(first, name='second', distrusted=lambda inputs: [])
    monkeypatch.setattr(api, 'BACKENDS', (first, second, plain))
    q = torch.randn(1, 12, 2, 16)
    inputs = AttentionInputs(q, q, q, PowerMap(torch.full((2, 16), 2.0)), None, None, 1e-6)
    assert api.choose_backend('auto', inputs, q.device) is second
    write_record(right_results())
    assert api.choose_backend('auto', inputs, q.device) is first


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
    record.highest_capability.cache_clear()
    yield
    record.highest_capability.cache_clear()


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
    feature_map = PowerMap(torch.ones(1, 16))
    inputs = AttentionInputs(q, q, q, feature_map, None, None, 1e-6)
    assert triton_backend.unsupported(inputs) == [
        'q: expected a GPU of compute capability 8.0 or more, got 7.5'
    ]
    monkeypatch.setattr(
        torch.cuda, 'get_device_capability', lambda device: (9, 0) if device == 1 else (7, 5)
    )
    record.highest_capability.cache_clear()
    assert triton_backend.missing() == []
