"""Part 2: the operator next to its peers, at the shape for which the published port has times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.cases import Case
from benchmarks.gpu.clock import compare
from benchmarks.measure import Run
from benchmarks.operators import Call, Function, attention_call, check_case
from benchmarks.peers import (
    literal_attention,
    port_of_linear_attention,
    published_port,
    softmax_attention,
)
from benchmarks.records import Row
from mmpola.ops import polarity_attention

CASES = [
    Case('B 8, H 16, D 64', 'power', 8, rows, columns, heads=16, dim=64)
    for rows, columns in ((32, 32), (64, 64), (128, 128), (256, 128))
]
"""1,024 to 32,768 tokens: the shapes of the port's README."""

DRY_CASE = Case('tiny', 'power', 1, 3, 6, heads=1, dim=16)

PORT_ALONE = 'port, features ready'
"""What the port's README times: its linear attention of D features, without PolaFormer's map."""


def operator_rows(dry_run: bool) -> Iterator[Row]:
    """Check in float32 that the operator and its peers agree, then compare their times.

    Parity is checked at the shortest length only: the literal equations would need too much memory.
    """
    device = 'cpu' if dry_run else 'cuda'
    cases = [DRY_CASE] if dry_run else CASES
    functions: dict[str, Function] = {
        'ours': partial(polarity_attention, backend='triton'),
        'literal': literal_attention,
    }
    if not dry_run:
        functions['compiled literal'] = torch.compile(literal_attention, dynamic=False)
    port = published_port()
    if port is None:
        print('published port (flash_bla): not installed, left out')
    else:
        functions['published port'] = port
    check_case(cases[0], device, functions)
    functions['softmax'] = softmax_attention  # another function
    for case in cases:
        for dtype in (torch.float16, torch.bfloat16):
            call = attention_call(case, device, dtype)
            passes = {name: call.passes(function) for name, function in functions.items()}
            if port is not None:
                passes[PORT_ALONE] = port_alone(call)
            for what in ('forward', 'step'):
                row: Row = {'case': case.name, 'tokens': case.tokens}
                row |= {'dtype': str(dtype).removeprefix('torch.'), 'pass': what}
                runs = {name: runs_of_passes[what] for name, runs_of_passes in passes.items()}
                with torch.autocast(device, dtype):  # which the literal equations need
                    row |= compare(runs, dry_run)
                yield row
            # Dynamo compiles at most 8 kinds of inputs of a function and then runs it eagerly.
            torch.compiler.reset()


def port_alone(call: Call) -> dict[str, Run]:
    """Return the passes of the port's linear attention of positive features [B, H, N, D]."""
    linear_attention = port_of_linear_attention()
    assert linear_attention is not None
    tensors = [x.detach().transpose(1, 2).contiguous() for x in call.positional[:3]]
    q, k, v = [x.abs().requires_grad_() for x in tensors]
    grad = call.grad.transpose(1, 2).contiguous()
    return Call([q, k, v], (q, k, v), {}, grad).passes(linear_attention)
