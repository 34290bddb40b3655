"""Compare the operators with their peers at the shapes of real stages, forward and forward + backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.cases import ATTENTION, MIX_AND_GATE, SCALING, Case
from benchmarks.measure import check_parity, copy_bandwidth, interleaved_seconds, peak_bytes, time_ratios
from benchmarks.peers import literal_attention, literal_mix_and_gate, published_port, softmax_attention
from benchmarks.progress import track
from mmpola.layers import rotary_tables
from mmpola.ops import ExpMap, PowerMap, mix_and_gate, polarity_attention

Row = dict[str, Any]
Function = Callable[..., Tensor]

TIMED_DTYPE = {'cuda': torch.float16, 'cpu': torch.float32}
"""dtype of the token tensors while timing; parity is checked in float32."""

FLOOR = {'attention': (4, 11), 'mix_and_gate': (4, 11)}
"""Token tensors that must be read or written, forward and forward + backward: q, k, v, o and then q, k, v, do, dq, dk,
dv; o, v, g, y and then o, v, g, dy, do, dv, dg."""

ANOTHER_FUNCTION = 'softmax'
"""The peer that computes another function: it is timed, but its output is not compared."""

PORT = 'published port'
"""The peer that supports only the power map."""


class Call(NamedTuple):
    """The arguments of a measured call.

    Args:
        leaves: tensors that get a gradient.
        positional, named: arguments of the operator, made from the leaves.
        grad: gradient of the output.
    """

    leaves: list[Tensor]
    positional: tuple[Any, ...]
    named: dict[str, Any]
    grad: Tensor


def attention(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare `polarity_attention` with the named peers."""
    every: dict[str, Function | None] = {
        'ours': polarity_attention,
        'torch': partial(polarity_attention, backend='torch'),
        'compiled torch': torch.compile(partial(polarity_attention, backend='torch'), dynamic=False),
        'literal': literal_attention,
        'compiled literal': torch.compile(literal_attention, dynamic=False),
        ANOTHER_FUNCTION: softmax_attention,
        PORT: published_port(),
    }
    yield from _suite('attention', ATTENTION[device], attention_call, every, device, repeats, peers)


def mix_and_gate_suite(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare `mix_and_gate` with the named peers."""
    every: dict[str, Function | None] = {
        'ours': mix_and_gate,
        'torch': partial(mix_and_gate, backend='torch'),
        'literal': literal_mix_and_gate,
        'compiled literal': torch.compile(literal_mix_and_gate, dynamic=False),
    }
    yield from _suite('mix_and_gate', MIX_AND_GATE[device], mix_and_gate_call, every, device, repeats, peers)


def scaling(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure the operator's seconds per token, forward + backward; constant if the cost is linear."""
    calls = {case.name: attention_call(case, device, TIMED_DTYPE[device]) for case in SCALING}
    runs = {name: forward_and_step(polarity_attention, call)[1] for name, call in calls.items()}
    seconds = interleaved_seconds(runs, device, repeats)
    shortest = seconds[SCALING[0].name] / SCALING[0].tokens
    for case in SCALING:
        yield {
            'case': case.name,
            'tokens': case.tokens,
            'cost per token over the shortest': seconds[case.name] / case.tokens / shortest,
            'seconds': {'step': seconds[case.name]},
        }


def attention_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw q, k, v as views of one tensor, as a linear layer returns it, and parameters in float32."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    packed = torch.randn(*shape[:2], 3, *shape[2:], device=device, dtype=dtype, requires_grad=True)
    size = (case.heads, case.dim)
    grad = torch.randn(shape, device=device, dtype=dtype)
    if case.feature_map == 'exp':
        temperatures = [torch.rand(size[0], 2 * size[1], device=device).requires_grad_() for _ in range(2)]
        tables = rotary_tables((case.rows, case.columns), 2 * case.dim, packed.device, torch.float32)
        return Call([packed, *temperatures], (*packed.unbind(2), ExpMap(*temperatures)), {'rotary': tables}, grad)
    position = torch.randn(shape[1:], device=device, requires_grad=True)
    exponent = (1 + 4 * torch.rand(size, device=device)).requires_grad_()
    scale = (0.5 + torch.rand(size, device=device)).requires_grad_()
    feature_map = PowerMap(exponent, scale)
    leaves = [packed, position, exponent, scale]
    return Call(leaves, (*packed.unbind(2), feature_map), {'key_position': position}, grad)


def mix_and_gate_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw attended tokens, values and gate, and one 5 x 5 kernel that all heads share."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    attended, values = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    gate = torch.randn(*shape[:2], case.heads * case.dim, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(case.dim, 1, 5, 5, device=device, requires_grad=True)
    bias = torch.randn(case.dim, device=device, requires_grad=True)
    leaves = [attended, values, gate, weight, bias]
    grad = torch.randn(gate.shape, device=device, dtype=dtype)
    return Call(leaves, (*leaves, (case.rows, case.columns)), {}, grad)


def _suite(
    name: str,
    cases: list[Case],
    make: Callable[[Case, str, torch.dtype], Call],
    every: dict[str, Function | None],
    device: str,
    repeats: int,
    peers: list[str],
) -> Iterator[Row]:
    bandwidth = copy_bandwidth(device, repeats)
    functions = {peer: function for peer in ('ours', *peers) if (function := every.get(peer)) is not None}
    for case in track(cases, name):
        yield measure_case(name, case, make, functions, device, repeats, peers, bandwidth)


def measure_case(
    name: str,
    case: Case,
    make: Callable[[Case, str, torch.dtype], Call],
    functions: dict[str, Function],
    device: str,
    repeats: int,
    peers: list[str],
    bandwidth: float,
) -> Row:
    """Check that the functions agree on a case in float32, then compare their times and memory.

    Args:
        name: of the operator, see `FLOOR`.
        make: draws the call.
        functions: by the names of 'ours' and of the peers that are installed.
        peers: the columns.
        bandwidth: bytes per second that a copy moves.
    """
    torch.compiler.reset()  # compiled peers are compiled for each case: beyond 8 of them Dynamo would run eagerly
    able = {peer: f for peer, f in functions.items() if peer != PORT or case.feature_map == 'power'}
    exact = make(case, device, torch.float32)
    same = {peer: f for peer, f in able.items() if peer != ANOTHER_FUNCTION}
    runs = {peer: forward_and_step(f, exact) for peer, f in same.items()}
    check_parity(case.name, {peer: [run(), *step()] for peer, (run, step) in runs.items()})
    dtype = TIMED_DTYPE[device]
    call = make(case, device, dtype)
    runs = {peer: forward_and_step(f, call) for peer, f in able.items()}
    with torch.autocast(device, torch.float16, enabled=dtype == torch.float16):
        seconds = {
            what: interleaved_seconds({peer: both[i] for peer, both in runs.items()}, device, repeats)
            for i, what in enumerate(('forward', 'step'))
        }
        memory = {peer: peak_bytes(step, device) for peer, (_, step) in runs.items()}
    floor = [n * case.elements * call.grad.element_size() / bandwidth for n in FLOOR[name]]
    row: Row = {'case': case.name, 'tokens': case.tokens}
    row |= time_ratios(seconds, peers)
    if 'literal' in memory:
        row['peak memory'] = memory['ours'] / memory['literal']
    row['copy %, forward'] = 100 * floor[0] / seconds['forward']['ours']
    row['copy %, step'] = 100 * floor[1] / seconds['step']['ours']
    return {**row, 'seconds': seconds, 'bytes': memory}


def forward_and_step(function: Function, call: Call) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the forward pass without gradients and the forward + backward pass, ready to run."""
    return partial(_forward, function, call), partial(_step, function, call)


def _forward(function: Function, call: Call) -> Tensor:
    with torch.no_grad():
        return function(*call.positional, **call.named)


def _step(function: Function, call: Call) -> tuple[Tensor | None, ...]:
    output = function(*call.positional, **call.named)
    return torch.autograd.grad(output, call.leaves, call.grad.to(output.dtype), allow_unused=True)
