"""The operator next to its peers, at the shape for which the published port has times."""

from __future__ import annotations

from functools import partial
from itertools import product

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


def operator_rows(dry_run: bool) -> list[Row]:
    """List the rows, those of training first."""
    rows: list[Row] = []
    for what, dtype in product(('step', 'forward'), ('float16', 'bfloat16')):
        for case in [DRY_CASE] if dry_run else CASES:
            row = {'case': case.name, 'tokens': case.tokens}
            rows.append(row | {'dtype': dtype, 'pass': what})
    return rows


def compiled_variants(row: Row, dry_run: bool) -> list[str]:
    """Return the functions of a row that are compiled before it is timed."""
    return [name for name in same_functions(dry_run) if name != 'literal']


def compile_operator(row: Row, variant: str, dry_run: bool) -> None:
    """Run a function once, so that compilers fill their caches on the disk."""
    functions = {variant: same_functions(dry_run)[variant]}
    with autocast(row, dry_run):
        for run in runs_of(row, functions, dry_run).values():
            run()


def time_operator(row: Row, failures: dict[str, str], dry_run: bool) -> Row:
    """Check in float32 that the operator and its peers agree, then compare their times.

    Parity is checked at the shortest length: the literal equations would need too much memory.

    Raises:
        ParityError: they compute different functions.
    """
    functions = {}
    for name, function in same_functions(dry_run).items():
        if name not in failures:
            functions[name] = function
    device = 'cpu' if dry_run else 'cuda'
    check_case(DRY_CASE if dry_run else CASES[0], device, functions)
    functions['softmax'] = softmax_attention  # another function
    runs = runs_of(row, functions, dry_run)
    with autocast(row, dry_run):
        return row | compare(runs, failures, dry_run)


def autocast(row: Row, dry_run: bool) -> torch.autocast:
    """Return the context of all runs of a row, which the literal equations need."""
    return torch.autocast('cpu' if dry_run else 'cuda', getattr(torch, row['dtype']))


def same_functions(dry_run: bool) -> dict[str, Function]:
    """Return the implementations of one function, by name."""
    functions: dict[str, Function] = {
        'ours': partial(polarity_attention, backend='triton'),
        'literal': literal_attention,
    }
    if not dry_run:
        functions['compiled literal'] = torch.compile(literal_attention, dynamic=False)
    port = published_port()
    if port is not None:
        functions['published port'] = port
    return functions


def runs_of(row: Row, functions: dict[str, Function], dry_run: bool) -> dict[str, Run]:
    """Return a run of the row's pass for each function, and for the port's linear attention."""
    cases = {case.tokens: case for case in ([DRY_CASE] if dry_run else CASES)}
    device = 'cpu' if dry_run else 'cuda'
    call = attention_call(cases[row['tokens']], device, getattr(torch, row['dtype']))
    runs = {name: call.passes(function)[row['pass']] for name, function in functions.items()}
    if 'published port' in functions:
        runs[PORT_ALONE] = port_alone(call)[row['pass']]
    return runs


def port_alone(call: Call) -> dict[str, Run]:
    """Return the passes of the port's linear attention of positive features [B, H, N, D]."""
    linear_attention = port_of_linear_attention()
    assert linear_attention is not None
    tensors = [x.detach().transpose(1, 2).contiguous() for x in call.positional[:3]]
    q, k, v = [x.abs().requires_grad_() for x in tensors]
    grad = call.grad.transpose(1, 2).contiguous()
    return Call([q, k, v], (q, k, v), {}, grad).passes(linear_attention)
