"""Part 4: tables and plots of a run, and which targets hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gpu.session import Session
from benchmarks.gpu.targets import Verdict, verdicts
from benchmarks.markdown import table
from mmpola.checkpoint.write import write_atomically

REPORT = 'report.md'

HOLDS = {True: 'yes', False: 'no', None: 'not measured'}

Row = dict[str, Any]

SECTIONS = {
    'Operator': ('attention', 'mix_and_gate'),
    'Operator and its peers': ('peers',),
    'Operator and its compiled peer': ('compiled',),
    'Networks': ('Pola-',),
    'Networks without host time': ('variants',),
}
"""Heading -> beginnings of the names of the results in its table."""

NOTES = (
    "Times are ratios as in benchmarks/README.md: the other implementation's time over ours. 'copy %' is the time that "
    'a copy needs for the bytes that must be moved, in percent of the time on the GPU without host time, with an empty '
    'L2 cache. A call is host-bound if it takes more than 1.25 times as long as its replay from a CUDA graph.'
)


def write_report(session: Session) -> list[Verdict]:
    """Write report.md and, where matplotlib is installed, plots; returns the verdict on each target."""
    found = verdicts(session.parts)
    text = '\n\n'.join([*_heading(session), *_sections(session, found)])
    write_atomically(session.folder / REPORT, f'{text}\n'.encode())
    _draw(session)
    return found


def _heading(session: Session) -> list[str]:
    made = ', '.join(f'{name} {session.environment[name]}' for name in ('torch', 'triton', 'commit'))
    return [f'# {session.environment["gpu"]}', f'{made}.', NOTES]


def _sections(session: Session, found: list[Verdict]) -> list[str]:
    rows = [{'target': x.target, 'worst result': x.found, 'reached': HOLDS[x.holds]} for x in found]
    text = ['## Targets', table(rows)]
    results = session.results('results')
    for heading, names in SECTIONS.items():
        group = [row for name, row in results.items() if name.startswith(names) and 'failure' not in row]
        text += [f'## {heading}', table(group)] if group else []
    if kernels := kernel_rows(results):
        text += ['## Kernels', table(kernels)]
    if tuned := tuning_rows(session):
        text += ['## Launches', table(tuned)]
    if checks := session.results('correctness'):
        text += ['## Checks', table([_check_row(name, check) for name, check in checks.items()])]
    failures = [f'- {name}: {x["failure"]}' for part in ('tuning', 'results')
                for name, x in session.results(part).items() if 'failure' in x]  # fmt: skip
    return [*text, '## Failures', '\n'.join(failures)] if failures else text


def kernel_rows(results: dict[str, Row]) -> list[Row]:
    """Return a row per kernel of a measured training step."""
    return [
        {
            'operator': row['operator'],
            'case': row['case'],
            'kernel': name,
            'microseconds': 1e6 * x['seconds'],
            'copy %': x['copy %'],
        }
        for row in results.values()
        for name, x in row.get('kernels', {}).items()
    ]


def tuning_rows(session: Session) -> list[Row]:
    """Return a row per tuned launch: the choice, today's launch and the second best, with times and spread."""
    rows = []
    for target, found in session.results('tuning').items():
        choices = {target: found} if 'launch' in found else {k: x for k, x in found.items() if isinstance(x, dict)}
        for name, choice in choices.items():
            measured = choice.get('measured', {})
            times = {what: x['seconds'] for what, x in measured.items()}
            rows.append({
                'kernel': name,
                'launch': _launch(choice['launch']),
                'second best': _launch(measured['second best']['launch']) if 'second best' in measured else '',
                'second best over it': times['second best'] / times['chosen'] if 'second best' in times else '',
                'today over it': times['today'] / times['chosen'] if 'today' in times else '',
                'spread %': 100 * measured['chosen']['spread'] / times['chosen'] if times else '',
                'rejected': len(choice.get('rejected', {})),
            })  # fmt: skip
    return rows


def _launch(launch: dict[str, float]) -> str:
    return ', '.join(f'{field} {value}' for field, value in launch.items())


def _check_row(name: str, check: Row) -> Row:
    return {
        'check': name,
        'worst result': check.get('worst result', ''),
        'error over budget': check.get('error over budget', ''),
        'failure': check['failure'],
    }


def _draw(session: Session) -> None:
    """Draw the shares of the copy bandwidth and the ratios to peers; nothing without matplotlib."""
    try:
        import matplotlib.pyplot as plt

        from benchmarks.plots import bars, ratios
    except ModuleNotFoundError:
        session.say('matplotlib is not installed, so no plots are drawn')
        return
    results = session.results('results')
    kernels = [row for row in results.values() if 'kernels' in row]
    names = [f'copy %, {name}' for name in ('forward', 'step')]
    drawn = {'copy': bars(kernels, names, '% of the copy bandwidth')} if kernels else {}
    for stem, beginning in (('peers', 'peers'), ('networks', 'Pola-')):
        rows = [row for name, row in results.items() if name.startswith(beginning) and 'failure' not in row]
        drawn |= {stem: ratios(rows)} if rows else {}
    for stem, figure in drawn.items():
        figure.axes[0].set_title(session.environment['gpu'])
        _save(figure, session.folder / f'{stem}.svg')
        plt.close(figure)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={'Date': None})
