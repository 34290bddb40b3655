"""The targets of benchmarks/README.md for a GPU, and whether a run's results reach them."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]

LARGE = 16.0
"""MB per token tensor from which a call is expected to reach its share of the copy bandwidth."""

LONG = 12544
"""Tokens from which softmax attention is expected to be much slower."""


class Verdict(NamedTuple):
    """Whether a target is reached.

    Args:
        target: what is asked for.
        found: the worst result.
        holds: None if nothing was measured.
    """

    target: str
    found: str
    holds: bool | None


def verdicts(parts: dict[str, dict[str, Row]]) -> list[Verdict]:
    """Judge the results of all parts."""
    checks, rows = parts.get('correctness', {}), parts.get('results', {})
    failed = sum(bool(check['failure']) for check in checks.values())
    found = [Verdict('every check against float64 passes', f'{failed} of {len(checks)} fail', not failed)]
    found = found if checks else [Verdict(found[0].target, 'not measured', None)]
    large = [x for name, x in rows.items() if name.startswith('attention') and x.get('MB per tensor', 0) >= LARGE]
    peers = [x for name, x in rows.items() if name.startswith(('peers', 'compiled'))]
    long = [x for x in peers if x.get('tokens', 0) >= LONG]
    detection = [x for name, x in rows.items() if name.endswith('800x1344')]
    swin = [x for name, x in rows.items() if name == 'Pola-Swin-T, 800x1344']
    new = [x for name, x in rows.items() if name == 'a new image size']
    return [
        *found,
        _at_least('operator, forward, % of the copy bandwidth from 16 MB per tensor', large, 'copy %, forward', 70),
        _at_least('operator, step, % of the copy bandwidth from 16 MB per tensor', large, 'copy %, step', 50),
        _at_least('operator, step, times as fast as literal', peers, 'literal, step', 8),
        _at_least('operator, step, times as fast as compiled literal', peers, 'compiled literal, step', 2.5),
        _at_least('operator, step, times as fast as the published port', peers, 'published port, step', 3),
        _at_least('operator, forward, times as fast as softmax from 12,544 tokens', long, 'softmax, forward', 20),
        _at_least('training step at 800x1344, times as fast as literal', detection, 'literal, training step', 2),
        _at_most('training step at 800x1344, peak memory over literal', detection, 'peak memory over literal', 0.6),
        _at_least("Pola-Swin-T, inference at 800x1344, times as fast as timm's", swin, 'timm, inference', 1.3),
        _at_most('kernels that a new image size compiles', new, 'compiled kernels', 0),
    ]


def _at_least(target: str, rows: list[Row], column: str, bound: float) -> Verdict:
    values = _numbers(rows, column)
    return _verdict(f'{target}: at least {bound:g}', min(values) if values else None, lambda x: x >= bound)


def _at_most(target: str, rows: list[Row], column: str, bound: float) -> Verdict:
    values = _numbers(rows, column)
    return _verdict(f'{target}: at most {bound:g}', max(values) if values else None, lambda x: x <= bound)


def _numbers(rows: list[Row], column: str) -> list[float]:
    return [x for row in rows if isinstance(x := row.get(column), int | float)]


def _verdict(target: str, value: float | None, holds: Any) -> Verdict:
    return Verdict(target, 'not measured', None) if value is None else Verdict(target, f'{value:.3g}', holds(value))
