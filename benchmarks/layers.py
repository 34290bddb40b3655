"""Compare the public attention layers with softmax attention and the equations written literally, over the length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.measure import check_parity, measured, ratio
from benchmarks.networks import literal_equations
from benchmarks.operators import Call, Function
from benchmarks.records import Row
from mmpola import PolaAttention, PolaMultiheadAttention, PolaPlusAttention

DIM, HEADS = 256, 8
SIDES = (14, 28, 56, 112)
"""Sides of square token maps: 196 to 12,544 tokens."""


def layer(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure one layer on one sample of N tokens of 256 channels; yields one row per N and layer.

    'softmax' is torch.nn.MultiheadAttention, which computes another function. 'literal' is PolaAttention on the
    equations written literally, as the class that is commonly copied from the authors' code; the two must agree.
    """
    layers: dict[str, nn.Module] = {
        'PolaAttention': PolaAttention(DIM, HEADS),
        'PolaPlusAttention': PolaPlusAttention(DIM, HEADS),
        'PolaMultiheadAttention': PolaMultiheadAttention(DIM, HEADS, batch_first=True),
    }
    if 'softmax' in peers:
        layers['softmax'] = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    functions = {name: _function(module.to(device)) for name, module in layers.items()}
    if 'literal' in peers:
        layers['literal'] = layers['PolaAttention']
        functions['literal'] = literal_equations()(functions['PolaAttention'])
    for side in tqdm(SIDES, 'tokens'):
        x = torch.randn(1, side**2, DIM, device=device, requires_grad=True)
        grad = torch.randn(1, side**2, DIM, device=device)
        passes = {
            name: Call([x, *module.parameters()], (x, (side, side)), {}, grad).passes(functions[name])
            for name, module in layers.items()
        }
        same = {name: passes[name] for name in ('PolaAttention', 'literal') if name in passes}
        check_parity(f'{side**2} tokens', {name: [x['forward'](), *x['step']()] for name, x in same.items()})
        seconds, memory = measured(passes, device, repeats)
        for name in (name for name in passes if name != 'softmax'):
            row: Row = {'case': f'{side} x {side}', 'tokens': side**2, 'layer': name}
            row |= {f'softmax, {what}': ratio(times, 'softmax', name) for what, times in seconds.items()}
            row['memory over softmax'] = ratio(memory, name, 'softmax')
            yield row | {'seconds': seconds, 'bytes': memory}


def _function(module: Any) -> Function:
    """Return a layer as a function of tokens and their grid."""
    if isinstance(module, nn.MultiheadAttention):  # PolaMultiheadAttention too
        return lambda x, grid: module(x, x, x, need_weights=False)[0]
    return module
