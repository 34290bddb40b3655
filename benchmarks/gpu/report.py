"""Part 4: the tables of a run, and whether its results reach the targets of CONTRIBUTING.md."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.gpu.results import MMDET_MEMORY
from benchmarks.gpu.session import Session
from benchmarks.gpu.tuning import TODAY
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


class SpeedTarget(NamedTuple):
    """A speed or a memory that the kernels should reach, judged by the worst result.

    Attributes:
        text: what is judged.
        results: beginnings of the names of the results that are judged together.
        column: of these results.
        relation: 'at least' or 'at most'.
        bound: of the column.
        size_column: a column by which small results are left out, if any.
        least_size: its smallest value that is judged.
    """

    text: str
    results: tuple[str, ...]
    column: str
    relation: str
    bound: float
    size_column: str = ''
    least_size: float = 0


OPERATOR = ('attention', 'compiled')
SWIN = ('Pola-Swin-T, 800x1344',)
PVT = ('Pola-PVT-T, 800x1344',)

SPEED_TARGETS = (
    SpeedTarget(
        'operator, forward, % of the copy bandwidth from 16 MB per tensor',
        ('attention',),
        'copy %, forward',
        'at least',
        70,
        'MB per tensor',
        16,
    ),
    SpeedTarget(
        'operator, step, % of the copy bandwidth from 16 MB per tensor',
        ('attention',),
        'copy %, step',
        'at least',
        50,
        'MB per tensor',
        16,
    ),
    SpeedTarget(
        'operator, step, times as fast as literal', OPERATOR, 'literal, step', 'at least', 8
    ),
    SpeedTarget(
        'operator, step, times as fast as compiled literal',
        OPERATOR,
        'compiled literal, step',
        'at least',
        2.5,
    ),
    SpeedTarget(
        'operator, step, times as fast as the published port',
        OPERATOR,
        'published port, step',
        'at least',
        3,
    ),
    SpeedTarget(
        'operator, forward, times as fast as softmax from 12,544 tokens',
        OPERATOR,
        'softmax, forward',
        'at least',
        20,
        'tokens',
        12544,
    ),
    SpeedTarget(
        "Pola-Swin-T, step at 800x1344, times as fast as mmdet's Swin-T",
        SWIN,
        'mmdet, training step',
        'at least',
        1.37,
    ),
    SpeedTarget(
        "Pola-PVT-T, step at 800x1344, times as fast as mmdet's PVT-T",
        PVT,
        'mmdet, training step',
        'at least',
        2.44,
    ),
    SpeedTarget(
        "training step at 800x1344, memory over mmdet's", SWIN + PVT, MMDET_MEMORY, 'at most', 1
    ),
    SpeedTarget(
        'training step with --compile, time over eager',
        ('--compile',),
        'compiled, training step',
        'at most',
        1,
    ),
    SpeedTarget(
        "Pola-Swin-T, inference at 800x1344, times as fast as mmdet's Swin-T",
        SWIN,
        'mmdet, inference',
        'at least',
        1.3,
    ),
    SpeedTarget(
        'kernels that a new image size compiles',
        ('a new image size',),
        'compiled kernels',
        'at most',
        0,
    ),
)


def write_report(session: Session) -> tuple[list[Row], list[Row]]:
    """Write report.md; return the verdicts on what every run must reach, and on the speed."""
    results = session.results('results')
    required = requirements(session)
    targets = speed(results)
    measured = {name: row for name, row in results.items() if not row.get('failure')}

    sections: dict[str, list[Row]] = {'Targets': required + targets}
    for heading, beginnings in SECTIONS.items():
        sections[heading] = [row for name, row in measured.items() if name.startswith(beginnings)]
    sections['Kernels'] = kernel_rows(measured)
    sections['Launches'] = launch_rows(session)
    sections['Checks'] = check_rows(session)
    sections['Failures'] = failure_rows(session)

    environment = session.environment
    text = [
        f'# {environment["gpu"]}',
        f'torch {environment["torch"]}, triton {environment["triton"]}, '
        f'commit {environment["commit"]}.',
        NOTES,
    ]
    for heading, rows in sections.items():
        if rows:
            text.append(f'## {heading}\n\n{table(rows)}')
    content = '\n\n'.join(text) + '\n\n'
    write_atomically(session.folder / 'report.md', content.encode())
    return required, targets


def kernel_rows(measured: dict[str, Row]) -> list[Row]:
    """Return a row for each kernel that was measured."""
    rows = []
    for row in measured.values():
        for name, kernel in row.get('kernels', {}).items():
            rows.append(
                {
                    'operator': row['operator'],
                    'case': row['case'],
                    'kernel': name,
                    'microseconds': 1e6 * kernel['seconds'],
                    'copy %': kernel['copy %'],
                }
            )
    return rows


def launch_rows(session: Session) -> list[Row]:
    """Return a row for each choice of the tuning: of a kernel's launch, or a target's split."""
    rows = []
    for target, tuned in session.results('tuning').items():
        for name, choice in tuned.get('kernels', {}).items():
            rows.append(launch_row(name, choice))
        if tuned.get('split'):
            rows.append(launch_row(f'split {target}', tuned['split']))
    return rows


def launch_row(name: str, choice: Row) -> Row:
    """Return a choice, next to the times of today's launch and of the second best."""
    timings = choice['timings']  # the shortest first
    chosen = timings[choice['chosen']]
    others = [other for other in timings if other != choice['chosen']]
    second = others[0] if others else TODAY
    return {
        'kernel': name,
        'launch': choice['chosen'],
        'second best': second,
        'second best over it': timings[second]['seconds'] / chosen['seconds'],
        'today over it': timings[TODAY]['seconds'] / chosen['seconds'],
        'spread %': 100 * chosen['spread'] / chosen['seconds'],
        'candidates': choice.get('ranked', ''),
        'rejected': len(choice.get('rejected', ())),
    }


def check_rows(session: Session) -> list[Row]:
    """Return a row for each check against float64."""
    rows = []
    for name, check in session.results('correctness').items():
        row: Row = {'check': name}
        for column in ('worst result', 'error over budget', 'failure'):
            row[column] = check.get(column, '')
        rows.append(row)
    return rows


def failure_rows(session: Session) -> list[Row]:
    """Return a row for each item of any part that failed."""
    rows = []
    for part, items in session.parts.items():
        for name, item in items.items():
            if item.get('failure'):
                rows.append({'measurement': f'{part}, {name}', 'failure': item['failure']})
    return rows


def requirements(session: Session) -> list[Row]:
    """Return whether the checks pass, and whether each kernel had launches to choose from."""
    checks = session.results('correctness').values()
    failed = [check for check in checks if check['failure']]
    checks_text = f'{len(failed)} of {len(checks)} fail' if checks else None

    kernels = 0
    without_launches = 0
    failed_targets = 0
    not_compiled = 0
    tried = 0
    tuned = session.results('tuning').values()
    for target in tuned:
        if 'kernels' not in target:
            failed_targets += 1
        for kernel in target.get('kernels', {}).values():
            kernels += 1
            if not kernel['ranked']:
                without_launches += 1
        not_compiled += target.get('not compiled', 0)
        tried += target.get('tried', 0)
    launches_text = None
    if tuned:
        launches_text = (
            f'{without_launches} of {kernels} had none, {not_compiled} of {tried} compilations '
            f'and {failed_targets} targets failed'
        )
    has_launches = without_launches == 0 and failed_targets == 0
    return [
        verdict('every check against float64 passes', checks_text, not failed),
        verdict('every kernel had launches to choose from', launches_text, has_launches),
    ]


def speed(results: dict[str, Row]) -> list[Row]:
    """Return whether the measurements reach the targets, each by its worst result."""
    verdicts = []
    for target in SPEED_TARGETS:
        values = []
        for name, row in results.items():
            if not name.startswith(target.results):
                continue
            if row.get(target.size_column, 0) < target.least_size:
                continue
            value = row.get(target.column)
            if isinstance(value, int | float):  # else it is 'absent' or 'too small'
                values.append(value)
        text = f'{target.text}: {target.relation} {target.bound:g}'
        if not values:
            verdicts.append(verdict(text, None, False))
        elif target.relation == 'at least':
            worst = min(values)
            verdicts.append(verdict(text, f'{worst:.3g}', worst >= target.bound))
        else:
            worst = max(values)
            verdicts.append(verdict(text, f'{worst:.3g}', worst <= target.bound))
    return verdicts


def verdict(target: str, worst: str | None, holds: bool) -> Row:
    """Return a row of the targets; `worst` is None if nothing was measured."""
    if worst is None:
        worst = 'not measured'
        result = 'not measured'
    elif holds:
        result = 'reached'
    else:
        result = 'not reached'
    return {'target': target, 'worst result': worst, 'result': result}
