"""Compare the operators with their peers at the shapes of real stages, forward and forward +
backward.
"""

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

MOVED = {'forward': 4, 'step': 11}
"""Token tensors that must be read or written, forward and forward + backward: q, k, v, o and then
q, k, v, do, dq, dk,
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

    def passes(self, function: Function) -> dict[str, Run]:
        """Return the forward pass without gradients and the forward + backward pass, ready to
        run.
        """
        return {'forward': partial(self._forward, function), 'step': partial(self._step, function)}

    def _forward(self, function: Function) -> Tensor:
        with torch.no_grad():
            return function(*self.positional, **self.named)

    def _step(self, function: Function) -> tuple[Tensor | None, ...]:
        output = function(*self.positional, **self.named)
        return torch.autograd.grad(
            output, self.leaves, self.grad.to(output.dtype), allow_unused=True
        )


def all_tensors(passes: dict[str, Run]) -> list[Tensor]:
    """Return the output and the gradients of a call."""
    return [passes['forward'](), *passes['step']()]


def operator_suite(name: str, device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare an operator with the named peers at the shapes of real stages."""
    bandwidth = copy_bandwidth(device, repeats)
    for case in tqdm((ATTENTION if name == 'attention' else MIX_AND_GATE)[device], name):
        yield measure_case(name, case, device, repeats, peers, bandwidth)


def scaling(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure the operator's seconds per token, forward + backward; constant if the cost is
    linear.
    """
    calls = {case.name: attention_call(case, device, TIMED_DTYPE[device]) for case in SCALING}
    runs = {name: call.passes(polarity_attention)['step'] for name, call in calls.items()}
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
    """Measure what a call costs whatever its size, Python, checks and launches: 50 calls on four
    tokens of one head.
    """

    def repeat(run: Run) -> None:
        for _ in range(50):
            run()

    for operator, feature_map in (
        ('attention', 'power'),
        ('attention', 'exp'),
        ('mix_and_gate', 'power'),
    ):
        call = OPERATORS[operator][1](
            Case('', feature_map, 1, 2, 2, 1, 32), device, TIMED_DTYPE[device]
        )
        runs = {
            name: call.passes(function) for name, function in functions_of(operator, peers).items()
        }
        seconds = {
            what: interleaved_seconds(
                {name: partial(repeat, x[what]) for name, x in runs.items()}, device, repeats
            )
            for what in MOVED
        }
        micro = {f'µs, {what}': round(1e6 * times['ours'] / 50) for what, times in seconds.items()}
        yield {
            'case': f'{operator}, {feature_map}',
            **micro,
            **time_ratios(seconds, peers),
            'seconds': seconds,
        }


def attention_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw q, k, v as views of one tensor, as a linear layer returns it, and parameters in
    float32.
    """
    shape = (case.batch, case.tokens, case.heads, case.dim)
    packed = torch.randn(*shape[:2], 3, *shape[2:], device=device, dtype=dtype, requires_grad=True)
    size = (case.heads, case.dim)
    grad = torch.randn(shape, device=device, dtype=dtype)
    if case.feature_map == 'exp':
        temperatures = [
            torch.rand(size[0], 2 * size[1], device=device).requires_grad_() for _ in range(2)
        ]
        tables = rotary_tables(
            (case.rows, case.columns), 2 * case.dim, packed.device, torch.float32
        )
        return Call(
            [packed, *temperatures],
            (*packed.unbind(2), ExpMap(*temperatures)),
            {'rotary': tables},
            grad,
        )
    position = torch.randn(shape[1:], device=device, requires_grad=True)
    exponent = (1 + 4 * torch.rand(size, device=device)).requires_grad_()
    scale = (0.5 + torch.rand(size, device=device)).requires_grad_()
    feature_map = PowerMap(exponent, scale)
    leaves = [packed, position, exponent, scale]
    return Call(leaves, (*packed.unbind(2), feature_map), {'key_position': position}, grad)


def mix_and_gate_call(case: Case, device: str, dtype: torch.dtype) -> Call:
    """Draw attended tokens, values and gate, and one 5 x 5 kernel that all heads share."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    attended, values = (
        torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(2)
    )
    gate = torch.randn(
        *shape[:2], case.heads * case.dim, device=device, dtype=dtype, requires_grad=True
    )
    weight = torch.randn(case.dim, 1, 5, 5, device=device, requires_grad=True)
    bias = torch.randn(case.dim, device=device, requires_grad=True)
    leaves = [attended, values, gate, weight, bias]
    grad = torch.randn(gate.shape, device=device, dtype=dtype)
    return Call(leaves, (*leaves, (case.rows, case.columns)), {}, grad)


OPERATORS: dict[
    str, tuple[Function, Callable[[Case, str, torch.dtype], Call], dict[str, Function | None]]
] = {
    'attention': (
        polarity_attention,
        attention_call,
        {
            'torch': partial(polarity_attention, backend='torch'),
            'literal': literal_attention,
            ANOTHER_FUNCTION: softmax_attention,
            PORT: published_port(),
        },
    ),
    'mix_and_gate': (
        mix_and_gate,
        mix_and_gate_call,
        {'torch': partial(mix_and_gate, backend='torch'), 'literal': literal_mix_and_gate},
    ),
}
"""Name -> the operator, the function that draws its arguments, and its peers; None for one that is
not installed.
"""


def functions_of(operator: str, peers: list[str], backend: str = 'auto') -> dict[str, Function]:
    """Return 'ours' and the peers that are installed by name; 'compiled NAME' is NAME, compiled for
    each shape.
    """
    function, _, others = OPERATORS[operator]
    found: dict[str, Function] = {'ours': partial(function, backend=backend)}
    for name in peers:
        if peer := others[name.removeprefix('compiled ')]:
            found[name] = (
                torch.compile(peer, dynamic=False) if name.startswith('compiled ') else peer
            )
    return found


def measure_case(
    operator: str,
    case: Case,
    device: str,
    repeats: int,
    peers: list[str],
    bandwidth: float,
    backend: str = 'auto',
) -> Row:
    """Check that an operator and its peers agree on a case in float32, then compare their times and
    memory.

    Args:
        operator: of `OPERATORS`.
        peers: the columns.
        bandwidth: bytes per second that a copy moves.
        backend: of the operator.
    """
    # compiled peers are compiled for each case: beyond 8 of them Dynamo would run eagerly
    torch.compiler.reset()
    make, functions = OPERATORS[operator][1], functions_of(operator, peers, backend)
    if case.feature_map != 'power':
        functions.pop(PORT, None)
    exact = make(case, device, torch.float32)
    same = {name: exact.passes(f) for name, f in functions.items() if name != ANOTHER_FUNCTION}
    check_parity(case.name, {name: partial(all_tensors, runs) for name, runs in same.items()})
    call = make(case, device, TIMED_DTYPE[device])
    runs = {name: call.passes(f) for name, f in functions.items()}
    seconds, memory = measured(runs, device, repeats)
    with torch.autocast(
        device, torch.float16, enabled=device == 'cuda', cache_enabled=False
    ):  # for the graphs
        replays = {what: graphed(run, device) for what, run in runs['ours'].items()}
        alone = interleaved_device_seconds(replays, device, repeats)
    row: Row = {'case': case.name, 'tokens': case.tokens, **time_ratios(seconds, peers)}
    if 'literal' in memory:
        row['peak memory'] = ratio(memory, 'ours', 'literal')
    for what, tensors in MOVED.items():
        row[f'copy %, {what}'] = 100 * tensors * call.grad.nbytes / bandwidth / alone[what].seconds
    return {**row, 'seconds': seconds, 'bytes': memory}


def triton_step(operator: str, case: Case, device: str, dtype: torch.dtype) -> Run:
    """Return the forward + backward pass of an operator's kernels, ready to run."""
    function, make, _ = OPERATORS[operator]
    return make(case, device, dtype).passes(partial(function, backend='triton'))['step']
