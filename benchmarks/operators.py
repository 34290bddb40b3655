"""Compare the operators with their peers at the shapes of real stages, forward and forward + backward."""

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
    peak_bytes,
    time_ratios,
)
from benchmarks.peers import literal_attention, literal_mix_and_gate, published_port, softmax_attention
from benchmarks.records import Row
from mmpola.layers import rotary_tables
from mmpola.ops import ExpMap, PowerMap, mix_and_gate, polarity_attention

Function = Callable[..., Tensor]

TIMED_DTYPE = {'cuda': torch.float16, 'cpu': torch.float32}
"""dtype of the token tensors while timing; parity is checked in float32."""

PASSES = {'forward': 4, 'step': 11}
"""Token tensors that must be read or written, forward and forward + backward: q, k, v, o and then q, k, v, do, dq, dk,
dv; or o, v, g, y and then o, v, g, dy, do, dv, dg."""

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


OTHERS: dict[str, dict[str, Function | None]] = {
    'attention': {
        'torch': partial(polarity_attention, backend='torch'),
        'literal': literal_attention,
        ANOTHER_FUNCTION: softmax_attention,
        PORT: published_port(),
    },
    'mix_and_gate': {'torch': partial(mix_and_gate, backend='torch'), 'literal': literal_mix_and_gate},
}
"""Operator -> its peers by name; None for one that is not installed."""


def find_peers(operator: str, names: list[str]) -> dict[str, Function]:
    """Return the peers that are installed by name; 'compiled NAME' is NAME, compiled for each shape."""
    found = {}
    for name in names:
        function = OTHERS[operator][name.removeprefix('compiled ')]
        if function is not None:
            found[name] = torch.compile(function, dynamic=False) if name.startswith('compiled ') else function
    return found


def operator_suite(name: str, device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare an operator with the named peers at the shapes of real stages."""
    functions = {'ours': OPERATORS[name][0], **find_peers(name, peers)}
    bandwidth = copy_bandwidth(device, repeats)
    for case in tqdm((ATTENTION if name == 'attention' else MIX_AND_GATE)[device], name):
        yield measure_case(name, case, functions, device, repeats, peers, bandwidth)


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


def host(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure what a call costs whatever its size, Python, checks and launches: 50 calls on four tokens of one head."""

    def repeat(run: Run) -> None:
        for _ in range(50):
            run()

    for operator, feature_map in (('attention', 'power'), ('attention', 'exp'), ('mix_and_gate', 'power')):
        function, make = OPERATORS[operator]
        call = make(Case('', feature_map, 1, 2, 2, 1, 32), device, TIMED_DTYPE[device])
        runs = {
            name: forward_and_step(f, call) for name, f in {'ours': function, **find_peers(operator, peers)}.items()
        }
        seconds = {}
        for i, what in enumerate(PASSES):
            variants = {name: partial(repeat, both[i]) for name, both in runs.items()}
            seconds[what] = interleaved_seconds(variants, device, repeats)
        micro = {f'µs, {what}': round(1e6 * times['ours'] / 50) for what, times in seconds.items()}
        yield {'case': f'{operator}, {feature_map}', **micro, **time_ratios(seconds, peers), 'seconds': seconds}


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


def measure_case(
    name: str,
    case: Case,
    functions: dict[str, Function],
    device: str,
    repeats: int,
    peers: list[str],
    bandwidth: float,
) -> Row:
    """Check that the functions agree on a case in float32, then compare their times and memory.

    Args:
        name: of the operator, see `OPERATORS`.
        functions: by the names of 'ours' and of the peers that are installed.
        peers: the columns.
        bandwidth: bytes per second that a copy moves.
    """
    make = OPERATORS[name][1]
    torch.compiler.reset()  # compiled peers are compiled for each case: beyond 8 of them Dynamo would run eagerly
    able = {peer: f for peer, f in functions.items() if peer != PORT or case.feature_map == 'power'}
    exact = make(case, device, torch.float32)
    same = {peer: f for peer, f in able.items() if peer != ANOTHER_FUNCTION}
    runs = {peer: forward_and_step(f, exact) for peer, f in same.items()}
    results: dict[str, Any] = {peer: [run(), step()] for peer, (run, step) in runs.items()}
    check_parity(case.name, {peer: [output, *gradients] for peer, (output, gradients) in results.items()})
    call = make(case, device, TIMED_DTYPE[device])
    runs = {peer: forward_and_step(f, call) for peer, f in able.items()}
    with torch.autocast(device, torch.float16, enabled=device == 'cuda', cache_enabled=False):  # for the graphs
        seconds = {
            what: interleaved_seconds({peer: both[i] for peer, both in runs.items()}, device, repeats)
            for i, what in enumerate(PASSES)
        }
        memory = {peer: peak_bytes(step, device) for peer, (_, step) in runs.items()}
        replays = {what: graphed(run, device) for what, run in zip(PASSES, runs['ours'], strict=True)}
        alone = interleaved_device_seconds(replays, device, repeats)
    row: Row = {'case': case.name, 'tokens': case.tokens, **time_ratios(seconds, peers)}
    if 'literal' in memory:
        row['peak memory'] = memory['ours'] / memory['literal']
    for what, tensors in PASSES.items():
        row[f'copy %, {what}'] = 100 * tensors * call.grad.nbytes / bandwidth / alone[what].seconds
    return {**row, 'seconds': seconds, 'bytes': memory}


OPERATORS: dict[str, tuple[Function, Callable[[Case, str, torch.dtype], Call]]] = {
    'attention': (polarity_attention, attention_call),
    'mix_and_gate': (mix_and_gate, mix_and_gate_call),
}
"""Name -> the operator, and the function that draws its arguments."""


def triton_passes(operator: str, case: Case, device: str, dtype: torch.dtype) -> tuple[Run, Run]:
    """Return the forward pass and the forward + backward pass of an operator's kernels, ready to run."""
    function, make = OPERATORS[operator]
    return forward_and_step(partial(function, backend='triton'), make(case, device, dtype))


def forward_and_step(function: Function, call: Call) -> tuple[Run, Run]:
    """Return the forward pass without gradients and the forward + backward pass, ready to run."""
    return partial(_forward, function, call), partial(_step, function, call)


def _forward(function: Function, call: Call) -> Tensor:
    with torch.no_grad():
        return function(*call.positional, **call.named)


def _step(function: Function, call: Call) -> tuple[Tensor | None, ...]:
    output = function(*call.positional, **call.named)
    return torch.autograd.grad(output, call.leaves, call.grad.to(output.dtype), allow_unused=True)
