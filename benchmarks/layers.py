"""Compare the public attention layers with softmax attention and the equations written literally, over the length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.measure import check_parity, interleaved_seconds, peak_bytes, ratio
from benchmarks.networks import literal_equations
from benchmarks.records import Row
from mmpola import PolaAttention, PolaMultiheadAttention, PolaPlusAttention

DIM, HEADS = 256, 8
SIDES = (14, 28, 56, 112)
"""Sides of square token maps: 196 to 12,544 tokens."""

OURS = ('PolaAttention', 'PolaPlusAttention', 'PolaMultiheadAttention')
PASSES = {'forward': False, 'step': True}
"""Name -> whether there is a backward pass."""


def layer(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure one layer on one sample of N tokens of 256 channels; yields one row per N and layer.

    'softmax' is torch.nn.MultiheadAttention, which computes another function. 'literal' is PolaAttention on the
    equations written literally, as the class that is commonly copied from the authors' code; the two must agree.
    """
    layers: dict[str, nn.Module] = {
        'PolaAttention': PolaAttention(DIM, HEADS),
        'PolaPlusAttention': PolaPlusAttention(DIM, HEADS),
        'PolaMultiheadAttention': PolaMultiheadAttention(DIM, HEADS, batch_first=True),
        'softmax': nn.MultiheadAttention(DIM, HEADS, batch_first=True),
    }
    layers = {name: module.to(device) for name, module in layers.items() if name in (*OURS, *peers)}
    for side in tqdm(SIDES, 'tokens'):
        x = torch.randn(1, side**2, DIM, device=device, requires_grad=True)
        calls = {name: _call(module, x, side) for name, module in layers.items()}
        if 'literal' in peers:
            calls['literal'] = partial(_literally, calls['PolaAttention'])
            compared = ('PolaAttention', 'literal')
            results: dict[str, Sequence[Tensor]] = {
                name: _gradients(calls[name], layers['PolaAttention'], x) for name in compared
            }
            check_parity(f'{side**2} tokens', results)
        with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
            runs = {
                what: {name: partial(_run, call, x, step) for name, call in calls.items()}
                for what, step in PASSES.items()
            }
            seconds = {what: interleaved_seconds(variants, device, repeats) for what, variants in runs.items()}
            memory = {name: peak_bytes(run, device) for name, run in runs['step'].items()}
        for name in (name for name in calls if name != 'softmax'):
            row: Row = {'case': f'{side} x {side}', 'tokens': side**2, 'layer': name}
            row |= {f'softmax, {what}': ratio(times, 'softmax', name) for what, times in seconds.items()}
            known = memory.get('softmax') != 0  # of a CPU, small needs may be met by memory that was freed before
            yield row | {
                'memory over softmax': ratio(memory, name, 'softmax') if known else 'too small',
                'seconds': seconds,
                'bytes': memory,
            }


def _call(module: nn.Module, x: Tensor, side: int) -> Callable[[], Tensor]:
    """Return a call of the layer with N = side * side tokens."""
    if isinstance(module, nn.MultiheadAttention):
        return lambda: module(x, x, x, need_weights=False)[0]
    return lambda: module(x, (side, side))


def _literally(call: Callable[[], Tensor]) -> Tensor:
    with literal_equations():
        return call()


def _run(call: Callable[[], Tensor], x: Tensor, step: bool) -> None:
    with torch.set_grad_enabled(step):
        output = call()
    if step:
        output.mean().backward()
        x.grad = None


def _gradients(call: Callable[[], Tensor], module: nn.Module, x: Tensor) -> list[Tensor]:
    output = call()
    return [output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])]
