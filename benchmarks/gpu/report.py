"""Part 4: the tables of a run, and whether its results reach the targets of benchmarks/README.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.gpu.session import Session
from benchmarks.records import table
from mmpola.checkpoint.write import write_atomically

Row = dict[str, Any]

SECTIONS = {
    'Operator': ('attention', 'mix_and_gate'),
    'Operator and its compiled peer': ('compiled',),
    'Networks': ('Pola-',),
}
"""Heading -> beginnings of the names of the results in its table."""

NOTES = (
    "Times are ratios as in benchmarks/README.md: the other implementation's time over ours. 'copy %' is the time that "
    'a copy needs for the bytes that must be moved, in percent of the time on the GPU without host time; neither finds '
    'its data in the L2 cache.'
)

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
    found: str = 'not measured'
    holds: bool | None = None


def write_report(session: Session) -> tuple[list[Verdict], list[Verdict]]:
    """Write report.md; return the verdicts on what every run must reach, and on the speed."""
    required, targets = requirements(session), speed(session.results('results'))
    made = ', '.join(f'{name} {session.environment[name]}' for name in ('torch', 'triton', 'commit'))
    words = {True: 'yes', False: 'no', None: 'not measured'}
    rows = [{'target': x.target, 'worst result': x.found, 'reached': words[x.holds]} for x in [*required, *targets]]
    sections = {'Targets': rows, **_result_rows(session.results('results'))}
    sections |= {'Launches': launch_rows(session), 'Checks': _check_rows(session)}
    failures = [{'measurement': f'{part}, {name}', 'failure': failure}
                for part, items in session.parts.items() for name, x in items.items()
                if (failure := x.get('failure'))]  # fmt: skip
    sections['Failures'] = failures
    text = [f'# {session.environment["gpu"]}', f'{made}.', NOTES]
    text += [f'## {heading}\n\n{table(rows)}' for heading, rows in sections.items() if rows]
    write_atomically(session.folder / 'report.md', '\n\n'.join([*text, '']).encode())
    return required, targets


def requirements(session: Session) -> list[Verdict]:
    """Return whether the checks pass, and whether the tuning had launches of every kernel to choose from."""
    checks, tuned = session.results('correctness').values(), session.results('tuning').values()
    failed = sum(bool(check['failure']) for check in checks)
    found = [Verdict('every check against float64 passes')]
    if checks:
        found = [found[0]._replace(found=f'{failed} of {len(checks)} fail', holds=not failed)]
    candidates = Verdict('every kernel had launches to choose from')
    if tuned:
        kernels = [kernel for x in tuned for kernel in x.get('kernels', {}).values()]
        without, spoilt = sum(not kernel['ranked'] for kernel in kernels), sum('kernels' not in x for x in tuned)
        missing, tried = (sum(x.get(name, 0) for x in tuned) for name in ('not compiled', 'tried'))
        text = f'{without} of {len(kernels)} had none, {missing} of {tried} compilations and {spoilt} targets failed'
        candidates = candidates._replace(found=text, holds=not (without or spoilt))
    return [*found, candidates]


def speed(results: dict[str, Row]) -> list[Verdict]:
    """Return whether the measurements reach the targets, each by its worst result."""
    rows = {name: row for name, row in results.items() if not row.get('failure')}
    large = [x for name, x in rows.items() if name.startswith('attention') and x['MB per tensor'] >= LARGE]
    peers = [x for name, x in rows.items() if name.startswith(('attention', 'compiled'))]
    long = [x for x in peers if x.get('tokens', 0) >= LONG]
    detection = [x for name, x in rows.items() if name.endswith('800x1344')]
    swin = [x for name, x in rows.items() if name == 'Pola-Swin-T, 800x1344']
    new = [x for name, x in rows.items() if name == 'a new image size']
    return [
        _judge('operator, forward, % of the copy bandwidth from 16 MB per tensor', large, 'copy %, forward', 70),
        _judge('operator, step, % of the copy bandwidth from 16 MB per tensor', large, 'copy %, step', 50),
        _judge('operator, step, times as fast as literal', peers, 'literal, step', 8),
        _judge('operator, step, times as fast as compiled literal', peers, 'compiled literal, step', 2.5),
        _judge('operator, step, times as fast as the published port', peers, 'published port, step', 3),
        _judge('operator, forward, times as fast as softmax from 12,544 tokens', long, 'softmax, forward', 20),
        _judge('training step at 800x1344, times as fast as literal', detection, 'literal, training step', 2),
        _judge(
            'training step at 800x1344, peak memory over literal', detection, 'peak memory, training step', most=0.6
        ),
        _judge("Pola-Swin-T, inference at 800x1344, times as fast as timm's", swin, 'timm, inference', 1.3),
        _judge('kernels that a new image size compiles', new, 'compiled kernels', most=0),
    ]


def _judge(target: str, rows: list[Row], column: str, least: float | None = None, most: float | None = None) -> Verdict:
    """Compare the worst number of a column with the least or the most that it may be."""
    values = [x for row in rows if isinstance(x := row.get(column), int | float)]
    target = f'{target}: at most {most:g}' if least is None else f'{target}: at least {least:g}'
    if not values:
        return Verdict(target)
    worst = max(values) if least is None else min(values)
    return Verdict(target, f'{worst:.3g}', worst <= most if most is not None else worst >= (least or 0))


def _result_rows(results: dict[str, Row]) -> dict[str, list[Row]]:
    rows = {name: row for name, row in results.items() if not row.get('failure')}
    sections = {
        heading: [row for name, row in rows.items() if name.startswith(names)] for heading, names in SECTIONS.items()
    }
    sections['Kernels'] = [
        {**{name: row[name] for name in ('operator', 'case')}, 'kernel': kernel, 'microseconds': 1e6 * x['seconds'],
         'copy %': x['copy %']}
        for row in rows.values() for kernel, x in row.get('kernels', {}).items()
    ]  # fmt: skip
    return sections


def launch_rows(session: Session) -> list[Row]:
    """Return a row per tuned launch: the choice, today's launch and the second best, with times and spread."""
    rows = []
    for target, found in session.results('tuning').items():
        choices = {**found.get('kernels', {}), **({f'split {target}': found['split']} if 'split' in found else {})}
        for name, choice in choices.items():
            chosen, second, today = (choice['measured'][what] for what in ('chosen', 'second best', 'today'))
            rows.append({
                'kernel': name,
                'launch': _launch(chosen['launch']),
                'second best': _launch(second['launch']),
                'second best over it': second['seconds'] / chosen['seconds'],
                'today over it': today['seconds'] / chosen['seconds'],
                'spread %': 100 * chosen['spread'] / chosen['seconds'],
                'candidates': choice.get('ranked', ''),
                'rejected': len(choice.get('rejected', ())),
            })  # fmt: skip
    return rows


def _launch(launch: dict[str, float]) -> str:
    return ', '.join(f'{field} {value}' for field, value in launch.items())


def _check_rows(session: Session) -> list[Row]:
    columns = ('worst result', 'error over budget', 'failure')
    return [{'check': name, **{column: check.get(column, '') for column in columns}}
            for name, check in session.results('correctness').items()]  # fmt: skip
