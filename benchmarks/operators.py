"""Compare the operators with their peers at the shapes of real stages, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.cases import ATTENTION, MIX_AND_GATE, SCALING, Case
from benchmarks.measure import (
    Run,
    check_parity,
    copy_bandwidth,
    graphed,
    interleaved_device_seconds,
    interleaved_seconds,
    measured,
    ratio,
    time_ratios,
)
from benchmarks.peers import (
    literal_attention,
    literal_mix_and_gate,
    published_port,
    softmax_attention,
)
from benchmarks.records import Row
from mmpola.layers import rotary_tables
from mmpola.ops import ExpMap, PowerMap, mix_and_gate, polarity_attention

Function = Callable[..., Tensor]

TIMED_DTYPE = {'cuda': torch.float16, 'cpu': torch.float32}
"""dtype of the token tensors while timing; parity is checked in float32."""

MOVED_TENSORS = {'forward': 4, 'step': 11}
"""Pass -> number of token tensors that must be read or written.

polarity_attention moves q, k, v and o forward, and also q, k, v, do, dq, dk and dv in a step.
mix_and_gate moves o, v, g and y forward, and also o, v, g, dy, do, dv and dg in a step.
"""

ANOTHER_FUNCTION = 'softmax'
"""The peer that computes another function: it is timed, but its output is not compared."""

PORT = 'published port'
"""The peer that supports only the power map."""

HOST_CALLS = 50
"""Calls that are timed together to measure what one costs on the host."""


class Call(NamedTuple):
    """The arguments of a measured call.

    Attributes:
        leaves: tensors that get a gradient.
        positional, named: arguments of the operator, made from the leaves.
        grad: gradient of the output.
    """

    leaves: list[Tensor]
    positional: tuple[Any, ...]
    named: dict[str, Any]
    grad: Tensor

    def passes(self, function: Function) -> dict[str, Run]:
        """Return 'forward', which runs without gradients, and 'step', forward and backward."""
        return {'forward': partial(self._forward, function), 'step': partial(self._step, function)}

    def _forward(self, function: Function) -> Tensor:
        with torch.no_grad():
            return function(*self.positional, **self.named)

    def _step(self, function: Function) -> tuple[Tensor | None, ...]:
        output = function(*self.positional, **self.named)
        grad = self.grad.to(output.dtype)
        return torch.autograd.grad(output, self.leaves, grad, allow_unused=True)


def all_tensors(passes: dict[str, Run]) -> list[Tensor]:
    """Return the output and the gradients of a call."""
    return [passes['forward'](), *passes['step']()]


def attention_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw q, k, v as views of one tensor, like a linear layer's output, and float32 parameters."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    packed_shape = (case.batch, case.tokens, 3, case.heads, case.dim)
    packed = torch.randn(packed_shape, device=device, dtype=dtype, requires_grad=True)
    q, k, v = packed.unbind(2)
    grad = torch.randn(shape, device=device, dtype=dtype)
    if case.feature_map == 'exp':
        temperatures = (case.heads, 2 * case.dim)
        same = torch.rand(temperatures, device=device).requires_grad_()
        opposite = torch.rand(temperatures, device=device).requires_grad_()
        grid = (case.rows, case.columns)
        tables = rotary_tables(grid, 2 * case.dim, packed.device, torch.float32)
        leaves = [packed, same, opposite]
        return Call(leaves, (q, k, v, ExpMap(same, opposite)), {'rotary': tables}, grad)
    position = torch.randn(shape[1:], device=device, requires_grad=True)
    exponent = (1 + 4 * torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    scale = (0.5 + torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    leaves = [packed, position, exponent, scale]
    return Call(leaves, (q, k, v, PowerMap(exponent, scale)), {'key_position': position}, grad)


def mix_and_gate_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw attended tokens, values and gate, and one 5 x 5 kernel that all heads share."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    gate_shape = (case.batch, case.tokens, case.heads * case.dim)
    attended = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    values = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    gate = torch.randn(gate_shape, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(case.dim, 1, 5, 5, device=device, requires_grad=True)
    bias = torch.randn(case.dim, device=device, requires_grad=True)
    grad = torch.randn(gate_shape, device=device, dtype=dtype)
    leaves = [attended, values, gate, weight, bias]
    grid = (case.rows, case.columns)
    return Call(leaves, (attended, values, gate, weight, bias, grid), {}, grad)


class Operator(NamedTuple):
    """An operator and what it is measured with.

    Attributes:
        function: the operator.
        draw_call: draws its arguments for a case, a device and a dtype.
        peers: what it is compared with, by name; None: not installed.
    """

    function: Function
    draw_call: Callable[[Case, str, torch.dtype], Call]
    peers: dict[str, Function | None]


OPERATORS = {
    'attention': Operator(
        polarity_attention,
        attention_call,
        {
            'torch': partial(polarity_attention, backend='torch'),
            'literal': literal_attention,
            ANOTHER_FUNCTION: softmax_attention,
            PORT: published_port(),
        },
    ),
    'mix_and_gate': Operator(
        mix_and_gate,
        mix_and_gate_call,
        {'torch': partial(mix_and_gate, backend='torch'), 'literal': literal_mix_and_gate},
    ),
}


def functions_of(operator: str, peers: list[str], backend: str = 'auto') -> dict[str, Function]:
    """Return the operator as 'ours', and the peers that are installed.

    Args:
        operator: one of `OPERATORS`.
        peers: names of its peers; 'compiled NAME' is NAME, compiled for each shape.
        backend: of the operator.
    """
    known = OPERATORS[operator].peers
    functions: dict[str, Function] = {
        'ours': partial(OPERATORS[operator].function, backend=backend)
    }
    for name in peers:
        peer = known[name.removeprefix('compiled ')]
        if peer is None:
            continue
        if name.startswith('compiled '):
            functions[name] = torch.compile(peer, dynamic=False)
        else:
            functions[name] = peer
    return functions


def operator_suite(name: str, device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare an operator with the named peers at the shapes of real stages."""
    bandwidth = copy_bandwidth(device, repeats)
    cases = ATTENTION if name == 'attention' else MIX_AND_GATE
    for case in tqdm(cases[device], name):
        yield measure_case(name, case, device, repeats, peers, bandwidth)


def measure_case(
    operator: str,
    case: Case,
    device: str,
    repeats: int,
    peers: list[str],
    bandwidth: float,
    backend: str = 'auto',
) -> Row:
    """Check that an operator and its peers agree on a case, then compare their times and memory.

    Args:
        operator: one of `OPERATORS`.
        case: the shapes.
        device: 'cuda' or 'cpu'.
        repeats: number of rounds.
        peers: the columns.
        bandwidth: bytes per second that a copy moves.
        backend: of the operator.
    """
    # Compiled peers are compiled for each case: beyond 8 of them Dynamo would run eagerly.
    torch.compiler.reset()
    draw_call = OPERATORS[operator].draw_call
    functions = functions_of(operator, peers, backend)
    if case.feature_map != 'power':
        functions.pop(PORT, None)

    exact_call = draw_call(case, device, torch.float32)
    compared = {}
    for name, function in functions.items():
        if name != ANOTHER_FUNCTION:
            compared[name] = partial(all_tensors, exact_call.passes(function))
    check_parity(case.name, compared)

    call = draw_call(case, device, TIMED_DTYPE[device])
    runs = {name: call.passes(function) for name, function in functions.items()}
    seconds, memory = measured(runs, device, repeats)
    # CUDA graphs cannot be recorded with autocast's cache.
    with torch.autocast(device, torch.float16, enabled=device == 'cuda', cache_enabled=False):
        replays = {what: graphed(run, device) for what, run in runs['ours'].items()}
        device_timings = interleaved_device_seconds(replays, device, repeats)

    row: Row = {'case': case.name, 'tokens': case.tokens, **time_ratios(seconds, peers)}
    if 'literal' in memory:
        row['peak memory'] = ratio(memory, 'ours', 'literal')
    for what, number in MOVED_TENSORS.items():
        copy_seconds = number * call.grad.nbytes / bandwidth
        row[f'copy %, {what}'] = 100 * copy_seconds / device_timings[what].seconds
    row['seconds'] = seconds
    row['bytes'] = memory
    return row


def triton_step(operator: str, case: Case, device: str, dtype: torch.dtype) -> Run:
    """Return the forward and backward pass of an operator's kernels, ready to run."""
    call = OPERATORS[operator].draw_call(case, device, dtype)
    kernels = partial(OPERATORS[operator].function, backend='triton')
    return call.passes(kernels)['step']


def scaling(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure the operator's seconds per token in a step; constant if the cost is linear."""
    runs = {}
    for case in SCALING:
        call = attention_call(case, device, TIMED_DTYPE[device])
        runs[case.name] = call.passes(polarity_attention)['step']
    seconds = interleaved_seconds(runs, device, repeats)
    shortest = seconds[SCALING[0].name] / SCALING[0].tokens
    for case in SCALING:
        yield {
            'case': case.name,
            'tokens': case.tokens,
            'cost per token over the shortest': seconds[case.name] / case.tokens / shortest,
            'seconds': {'step': seconds[case.name]},
        }


def host(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure what a call costs whatever its size: Python, checks and launches.

    `HOST_CALLS` calls on four tokens of one head are timed together.
    """

    def repeat(run: Run) -> None:
        for _ in range(HOST_CALLS):
            run()

    for operator, feature_map in (
        ('attention', 'power'),
        ('attention', 'exp'),
        ('mix_and_gate', 'power'),
    ):
        case = Case('', feature_map, batch=1, rows=2, columns=2, heads=1, dim=32)
        call = OPERATORS[operator].draw_call(case, device, TIMED_DTYPE[device])
        functions = functions_of(operator, peers)
        row: Row = {'case': f'{operator}, {feature_map}'}
        seconds = {}
        for what in ('forward', 'step'):
            runs = {}
            for name, function in functions.items():
                runs[name] = partial(repeat, call.passes(function)[what])
            seconds[what] = interleaved_seconds(runs, device, repeats)
            row[f'µs, {what}'] = round(1e6 * seconds[what]['ours'] / HOST_CALLS)
        row |= time_ratios(seconds, peers)
        row['seconds'] = seconds
        yield row
