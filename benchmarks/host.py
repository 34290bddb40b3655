"""Measure the host's part of a call: Python, checks, allocations and launches, without what the GPU computes.

On a GPU a small call cannot be faster than this. Token tensors are tiny, and on a CPU the Triton kernels are replaced
by nothing, so no GPU is needed. The peer is the literal PyTorch code on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import Case
from benchmarks.measure import interleaved_seconds, time_ratios
from benchmarks.operators import TIMED_DTYPE, Call, attention_call, mix_and_gate_call
from benchmarks.peers import literal_attention, literal_mix_and_gate
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.triton import backend

CASES = {
    'power map': Case('power map', 'power', 1, 2, 2, 1, 32),
    'exponential map': Case('exponential map', 'exp', 1, 2, 2, 1, 32),
    'mix_and_gate': Case('mix_and_gate', 'power', 1, 2, 2, 1, 32),
}
"""Four tokens and one head: PyTorch computes them in no time."""

CALLS = 50
"""Calls per measurement: one takes microseconds."""

WITHOUT_WORK = {
    'alias', 'as_strided', 'chunk', 'contiguous', 'detach', 'empty', 'empty_like', 'empty_strided', 'expand', 'flatten',
    'new_empty', 'permute', 'reshape', 'result_type', 'select', 'slice', 'split', 'split_with_sizes', 'squeeze', 't',
    'to', 'transpose', 'unbind', 'unflatten', 'unsqueeze', 'view', '_to_copy', '_unsafe_view', '_reshape_alias',
    'broadcast_tensors', 'expand_as', 'narrow', 'view_as', 'matmul', 'clone', 'zeros', 'zeros_like', 'ones_like',
}  # fmt: skip
"""aten operators that launch nothing themselves: views, allocations, and those that only call others."""


class Launches:
    """Takes the place of a kernel: counts its launches and does nothing."""

    count = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*_: Any, **__: Any) -> None:
            Launches.count += 1

        return launch


def host(device: str, repeats: int, peers: list[str]) -> Iterator[dict[str, Any]]:
    """Compare the host time of forward (without and with gradients) and backward calls with that of literal PyTorch."""
    for name, case in CASES.items():
        make = mix_and_gate_call if name == 'mix_and_gate' else attention_call
        ours = partial(mix_and_gate if name == 'mix_and_gate' else polarity_attention, backend='triton')
        literal = literal_mix_and_gate if name == 'mix_and_gate' else literal_attention
        call = _with_own_leaves(make(case, device, TIMED_DTYPE[device]))
        with _without_kernels(device) if device == 'cpu' else nullcontext():
            runs = {
                peer: _runs(f, call) for peer, f in (('ours', ours), ('literal', literal)) if peer in ('ours', *peers)
            }
            seconds = {
                what: interleaved_seconds({peer: run[what] for peer, run in runs.items()}, device, repeats, warm_up=3)
                for what in ('inference', 'forward', 'backward')
            }
        seconds = {what: {peer: x / CALLS for peer, x in times.items()} for what, times in seconds.items()}
        with _without_kernels(device):
            forward, backward = _launches(ours, call)
        yield {
            'case': name,
            'launches, forward': forward,
            'launches, backward': backward,
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
    """Replace the kernels by `Launches`, with which the backend `triton` also runs on a CPU."""
    from mmpola.ops.triton import combine_kernels, exp_kernels, mix_and_gate_kernels, power_kernels

    with ExitStack() as stack:
        if device == 'cpu':
            stack.enter_context(patch.object(backend, 'INTERPRETED', True))
        for module in (combine_kernels, exp_kernels, mix_and_gate_kernels, power_kernels):
            for name in [name for name in vars(module) if name.endswith('_kernel')]:
                stack.enter_context(patch.object(module, name, Launches()))
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


def _launches(function: Callable[..., Tensor], call: Call) -> tuple[int, int]:
    """Count kernels and aten operators that a forward and a backward call launch."""
    output: list[Tensor] = []
    steps = (
        lambda: output.append(function(*call.positional, **call.named)),
        lambda: torch.autograd.grad(output[0], call.leaves, call.grad),
    )
    found = []
    for step in steps:
        before = Launches.count
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
            step()
        found.append(Launches.count - before + sum(_is_launch(event) for event in profiled.events()))
    return found[0], found[1]


def _is_launch(event: Any) -> bool:
    """Whether an event of the profiler is an aten operator that works, not one that only a CPU calls inside another."""
    parent = event.cpu_parent
    return _works(event.name) and not (parent is not None and _works(parent.name))


def _works(name: str) -> bool:
    return name.startswith('aten::') and name.removeprefix('aten::') not in WITHOUT_WORK
