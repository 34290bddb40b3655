"""Part 4: the tables of a run, and whether its results reach the targets of CONTRIBUTING.md."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.results import MMDET_MEMORY
from benchmarks.gpu.session import Session
from benchmarks.records import Row, table
from mmpola.checkpoint.write import write_atomically

SECTIONS = {
    'Operator': ('attention', 'mix_and_gate'),
    'Operator and its compiled peer': ('compiled',),
    'Networks': ('Pola-',),
    'Compiled networks (`--compile`)': ('--compile',),
    'Depth-wise convolutions outside of mix_and_gate': ('depth-wise',),
}
"""Heading -> beginnings of the names of the results in its table."""

NOTES = (
    "Times are ratios as in benchmarks/README.md: the other implementation's time over ours. "
    "'copy %' is the time that a copy needs for the bytes that must be moved, in percent of the "
    'time on the GPU without host time; neither finds its data in the L2 cache.'
)

GROUPS = {
    'large': (('attention',), 'MB per tensor', 16),
    'peers': (('attention', 'compiled'), '', 0),
    'long': (('attention', 'compiled'), 'tokens', 12544),
    'detection': (('Pola-Swin-T, 800x1344', 'Pola-PVT-T, 800x1344'), '', 0),
    'swin': (('Pola-Swin-T, 800x1344',), '', 0),
    'pvt': (('Pola-PVT-T, 800x1344',), '', 0),
    'compiled networks': (('--compile',), '', 0),
    'new size': (('a new image size',), '', 0),
}
"""Results that are judged together: beginnings of their names, and a column with its smallest
value, if any.
"""

SPEED = (
    (
        'operator, forward, % of the copy bandwidth from 16 MB per tensor',
        'large',
        'copy %, forward',
        'at least',
        70,
    ),
    (
        'operator, step, % of the copy bandwidth from 16 MB per tensor',
        'large',
        'copy %, step',
        'at least',
        50,
    ),
    ('operator, step, times as fast as literal', 'peers', 'literal, step', 'at least', 8),
    (
        'operator, step, times as fast as compiled literal',
        'peers',
        'compiled literal, step',
        'at least',
        2.5,
    ),
    (
        'operator, step, times as fast as the published port',
        'peers',
        'published port, step',
        'at least',
        3,
    ),
    (
        'operator, forward, times as fast as softmax from 12,544 tokens',
        'long',
        'softmax, forward',
        'at least',
        20,
    ),
    (
        "Pola-Swin-T, step at 800x1344, times as fast as mmdet's Swin-T",
        'swin',
        'mmdet, training step',
        'at least',
        1.37,
    ),
    (
        "Pola-PVT-T, step at 800x1344, times as fast as mmdet's PVT-T",
        'pvt',
        'mmdet, training step',
        'at least',
        2.44,
    ),
    ("training step at 800x1344, memory over mmdet's", 'detection', MMDET_MEMORY, 'at most', 1),
    (
        'training step with --compile, time over eager',
        'compiled networks',
        'compiled, training step',
        'at most',
        1,
    ),
    (
        "Pola-Swin-T, inference at 800x1344, times as fast as timm's",
        'swin',
        'timm, inference',
        'at least',
        1.3,
    ),
    ('kernels that a new image size compiles', 'new size', 'compiled kernels', 'at most', 0),
)
"""Targets: what is judged, the group of results, the column, and the bound of its worst value."""


def write_report(session: Session) -> tuple[list[Row], list[Row]]:
    """Write report.md; return the verdicts on what every run must reach, and on the speed."""
    results, tuned = session.results('results'), session.results('tuning')
    required, targets = requirements(session), speed(results)
    rows = {name: row for name, row in results.items() if not row.get('failure')}
    sections = {'Targets': [*required, *targets]}
    sections |= {
        heading: [rows[name] for name in rows if name.startswith(x)]
        for heading, x in SECTIONS.items()
    }
    kernels = []
    for row in rows.values():
        for name, kernel in row.get('kernels', {}).items():
            kernels.append(
                {
                    'operator': row['operator'],
                    'case': row['case'],
                    'kernel': name,
                    'microseconds': 1e6 * kernel['seconds'],
                    'copy %': kernel['copy %'],
                }
            )
    sections['Kernels'] = kernels
    launches = []
    for target, found in tuned.items():
        choices = dict(found.get('kernels', {}))
        choices[f'split {target}'] = found.get('split')
        for name, choice in choices.items():
            if choice:
                launches.append(_launch_row(name, choice))
    sections['Launches'] = launches
    sections['Checks'] = [
        {
            'check': name,
            **{
                column: x.get(column, '')
                for column in ('worst result', 'error over budget', 'failure')
            },
        }
        for name, x in session.results('correctness').items()
    ]
    sections['Failures'] = [
        {'measurement': f'{part}, {name}', 'failure': x['failure']}
        for part, items in session.parts.items() for name, x in items.items() if x.get('failure')
    ]  # fmt: skip
    made = ', '.join(
        f'{name} {session.environment[name]}' for name in ('torch', 'triton', 'commit')
    )
    text = [f'# {session.environment["gpu"]}', f'{made}.', NOTES]
    text += [f'## {heading}\n\n{table(rows)}' for heading, rows in sections.items() if rows]
    write_atomically(session.folder / 'report.md', '\n\n'.join([*text, '']).encode())
    return required, targets


def requirements(session: Session) -> list[Row]:
    """Return whether the checks pass, and whether the tuning had launches of every kernel to choose
    from.
    """
    checks, tuned = session.results('correctness').values(), session.results('tuning').values()
    failed = sum(bool(check['failure']) for check in checks)
    kernels = [kernel for x in tuned for kernel in x.get('kernels', {}).values()]
    without, spoilt = (
        sum(not kernel['ranked'] for kernel in kernels),
        sum('kernels' not in x for x in tuned),
    )
    missing, tried = (sum(x.get(name, 0) for x in tuned) for name in ('not compiled', 'tried'))
    text = f'{without} of {len(kernels)} had none, {missing} of {tried} compilations '
    text += f'and {spoilt} targets failed'
    return [
        _verdict(
            'every check against float64 passes',
            checks and f'{failed} of {len(checks)} fail',
            not failed,
        ),
        _verdict(
            'every kernel had launches to choose from', tuned and text, not (without or spoilt)
        ),
    ]


def speed(results: dict[str, Row]) -> list[Row]:
    """Return whether the measurements reach the targets, each by its worst result."""
    verdicts = []
    for target, group, column, relation, bound in SPEED:
        names, size, least = GROUPS[group]
        rows = [
            row
            for name, row in results.items()
            if name.startswith(names) and row.get(size, 0) >= least
        ]
        values = [x for row in rows if isinstance(x := row.get(column), int | float)]
        worst = (min if relation == 'at least' else max)(values, default=0)
        holds = worst >= bound if relation == 'at least' else worst <= bound
        verdicts.append(
            _verdict(f'{target}: {relation} {bound:g}', values and f'{worst:.3g}', holds)
        )
    return verdicts


def _verdict(target: str, worst: Any, holds: bool) -> Row:
    """Return a row of the targets; `worst` is empty if nothing was measured."""
    result = 'reached' if holds else 'not reached'
    return {
        'target': target,
        'worst result': worst or 'not measured',
        'result': result if worst else 'not measured',
    }


def _launch_row(name: str, choice: Row) -> Row:
    """Return the choice, with its time and spread next to those of today's launch and the second
    best.
    """
    timings, chosen = choice['timings'], choice['timings'][choice['chosen']]
    second = next((other for other in timings if other != choice['chosen']), 'today')
    return {
        'kernel': name,
        'launch': choice['chosen'],
        'second best': second,
        'second best over it': timings[second]['seconds'] / chosen['seconds'],
        'today over it': timings['today']['seconds'] / chosen['seconds'],
        'spread %': 100 * chosen['spread'] / chosen['seconds'],
        'candidates': choice.get('ranked', ''),
        'rejected': len(choice.get('rejected', ())),
    }
