"""Measure the host's part of a call: Python, checks, allocations and launches, without what the GPU computes.

On a GPU a small call cannot be faster than this. Token tensors are tiny, and on a CPU the Triton kernels are replaced
by nothing, so no GPU is needed. The peer is the literal PyTorch code on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.cases import Case
from benchmarks.measure import interleaved_seconds, time_ratios
from benchmarks.operators import OPERATORS, TIMED_DTYPE, Call
from benchmarks.peers import literal_attention, literal_mix_and_gate
from benchmarks.records import Row
from mmpola.ops.triton import backend

CASES = {
    'power map': ('attention', Case('power map', 'power', 1, 2, 2, 1, 32)),
    'exponential map': ('attention', Case('exponential map', 'exp', 1, 2, 2, 1, 32)),
    'mix_and_gate': ('mix_and_gate', Case('mix_and_gate', 'power', 1, 2, 2, 1, 32)),
}
"""Four tokens and one head: PyTorch computes them in no time."""

LITERAL = {'attention': literal_attention, 'mix_and_gate': literal_mix_and_gate}

CALLS = 50
"""Calls per measurement: one takes microseconds."""


class NoKernel:
    """Takes the place of a kernel: its launches do nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **__: None


def host(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Compare the host time of forward (without and with gradients) and backward calls with that of literal PyTorch."""
    for name, (operator, case) in CASES.items():
        function, make = OPERATORS[operator]
        call = _with_own_leaves(make(case, device, TIMED_DTYPE[device]))
        functions = {'ours': partial(function, backend='triton'), 'literal': LITERAL[operator]}
        with _without_kernels(device):
            runs = {peer: _runs(f, call) for peer, f in functions.items() if peer in ('ours', *peers)}
            rounds = {
                what: interleaved_seconds({peer: run[what] for peer, run in runs.items()}, device, repeats, warm_up=3)
                for what in ('inference', 'forward', 'backward')
            }
        seconds = {what: {peer: x / CALLS for peer, x in times.items()} for what, times in rounds.items()}
        yield {
            'case': name,
            **{f'µs, {what}': round(1e6 * times['ours']) for what, times in seconds.items()},
            **time_ratios(seconds, peers),
            'seconds': seconds,
        }


def _with_own_leaves(call: Call) -> Call:
    """Make q, k and v leaves, strided as before: their gradients are then not put together to that of one tensor."""
    packed, *leaves = call.leaves
    if packed.ndim != 5:
        return call
    q, k, v = (x.detach().requires_grad_() for x in call.positional[:3])
    return call._replace(leaves=[q, k, v, *leaves], positional=(q, k, v, *call.positional[3:]))


@contextmanager
def _without_kernels(device: str) -> Iterator[None]:
    """Replace the kernels by `NoKernel` on a CPU, where the backend `triton` then also runs."""
    from mmpola.ops.triton import combine_kernels, exp_kernels, mix_and_gate_kernels, power_kernels

    with ExitStack() as stack:
        if device == 'cpu':
            stack.enter_context(patch.object(backend, 'INTERPRETED', True))
            for module in (combine_kernels, exp_kernels, mix_and_gate_kernels, power_kernels):
                for name in [name for name in vars(module) if name.endswith('_kernel')]:
                    stack.enter_context(patch.object(module, name, NoKernel()))
        yield


def _runs(function: Callable[..., Tensor], call: Call) -> dict[str, Callable[[], None]]:
    """Return CALLS calls each: inference, forward with gradients, and backward of a graph made beforehand."""

    def inference() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                function(*call.positional, **call.named)

    def forward() -> None:
        for _ in range(CALLS):
            function(*call.positional, **call.named)

    output = function(*call.positional, **call.named)

    def backward() -> None:
        for _ in range(CALLS):
            torch.autograd.grad(output, call.leaves, call.grad, retain_graph=True)

    return {'inference': inference, 'forward': forward, 'backward': backward}
