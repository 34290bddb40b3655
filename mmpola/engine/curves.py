"""Curves of training runs: choose the panels and draw them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmpola.engine.logs import Log
from mmpola.messages import UsageError, listed

STEP = 'training step'
UNITS = {'time': 'seconds', 'data_time': 'seconds', 'memory': 'MiB'}
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000')
DASHES = ('-', '--', ':', '-.')
COMPONENTS = 6
"""Number of components drawn with the total loss, the largest first: a cascade has a dozen."""
FEW_POINTS = 30
"""Curves with fewer points get a marker at each."""


@dataclass
class Curve:
    """A line of a panel: the values `key` of log number `log`, as (positions, values)."""

    log: int
    key: str
    points: tuple[list[float], list[float]]


@dataclass
class Panel:
    """One of the figure's axes: `value` and `position` are the labels of y and x."""

    title: str
    value: str
    position: str
    curves: list[Curve]
    from_zero: bool = False


def default_panels(logs: list[Log]) -> list[Panel]:
    """Choose panels of what was logged: loss, learning rate, validation metrics, and the time of a step."""
    losses = [_loss_keys(log, components=len(logs) == 1) for log in logs]
    loss_title = 'Training loss and its largest components' if max(map(len, losses)) > 1 else 'Training loss'
    per_second = list(dict.fromkeys(key for log in logs for key in log.keys(False) if key.endswith('per_second')))
    panels = [
        Panel(loss_title, 'loss', STEP, _curves(logs, losses)),
        Panel('Learning rate', 'first parameter group', STEP, _curves(logs, [['lr']] * len(logs)), from_zero=True),
        *_metric_panels(logs),
        Panel('Time per step', 'seconds', STEP, _curves(logs, [['time']] * len(logs)), from_zero=True),
        Panel('Waiting for data', '% of the step', STEP, [_wait(*log) for log in enumerate(logs)], from_zero=True),
        *(
            Panel(key.replace('_', ' ').capitalize(), '1 / s', STEP, _curves(logs, [[key]] * len(logs)), from_zero=True)
            for key in per_second
        ),
    ]
    for panel in panels:
        panel.curves = [curve for curve in panel.curves if curve.points[0]]
    return [panel for panel in panels if panel.curves]


def _loss_keys(log: Log, components: bool) -> list[str]:
    """Return the total loss and, with `components`, its largest components; all losses where there is no total."""
    found = [key for key in log.keys(False) if 'loss' in key]
    total = ['loss'] if 'loss' in found else []
    others = sorted((key for key in found if key != 'loss'), key=lambda key: -log.curve(key, False)[1][-1])
    return total + (others[:COMPONENTS] if components or not total else [])


def _metric_panels(logs: list[Log]) -> list[Panel]:
    """Return a panel per family of metrics (`coco/…`, `accuracy/…`) and unit of their positions."""
    families: dict[tuple[str, str], list[Curve]] = {}
    for index, log in enumerate(logs):
        keys = [key for key in log.keys(True) if key not in ('time', 'data_time')]
        for key in keys:
            detail = any(key != other and key.startswith(f'{other}_') for other in keys)  # such as mAP_50 next to mAP
            if not detail:
                family = key.rpartition('/')[0]
                families.setdefault((family, log.unit), []).append(Curve(index, key, log.curve(key, True)))
    return [
        Panel(f'Validation: {family}' if family else 'Validation', 'value', unit, curves)
        for (family, unit), curves in families.items()
    ]


def _wait(index: int, log: Log) -> Curve:
    """Return the share of a step spent waiting for the batch, in percent: as logged, else from MMEngine's times."""
    shares = {
        row['iter']: row['data_share'] if 'data_share' in row else row['data_time'] / row['time']
        for row in log.rows.training
        if 'data_share' in row or ('data_time' in row and row.get('time'))
    }
    return Curve(index, 'data share', (list(shares), [100 * share for share in shares.values()]))


def _curves(logs: list[Log], keys: list[list[str]]) -> list[Curve]:
    return [Curve(index, key, log.curve(key, False)) for index, log in enumerate(logs) for key in keys[index]]


def asked_panels(logs: list[Log], keys: list[str]) -> list[Panel]:
    """Return a panel per key; two if both training and validation logged it.

    Raises:
        UsageError: no log has such a key; lists the keys that there are.
    """
    known = {
        validation: list(dict.fromkeys(key for log in logs for key in log.keys(validation)))
        for validation in (False, True)
    }
    for key in keys:
        if key not in known[False] and key not in known[True]:
            logged = [listed(known[validation], shown=None) or 'nothing' for validation in (False, True)]
            raise UsageError(
                f'--keys: expected logged values, got {key}; training logged {logged[0]}; validation {logged[1]}'
            )
    panels = []
    for key in keys:
        for validation, units in ((False, ['step']), (True, sorted({log.unit for log in logs}))):
            for unit in units:
                curves = [
                    Curve(index, key, log.curve(key, validation))
                    for index, log in enumerate(logs)
                    if key in log.keys(validation) and (not validation or log.unit == unit)
                ]
                kind, position = ('Validation', unit) if validation else ('Training', STEP)
                if curves:
                    panels.append(Panel(f'{kind}: {key}', UNITS.get(key, key.rpartition('/')[2]), position, curves))
    return panels


def draw(panels: list[Panel], names: list[str]) -> Figure:
    """Draw panels in two columns; with several logs a colour per log and a dash style per key, else a colour per key.

    Args:
        panels: at least one.
        names: of the logs, for the legend.
    """
    columns = min(2, len(panels))
    wide = len(panels) % columns  # of an odd number of panels the first one is as wide as the figure
    rows = (len(panels) + wide) // columns
    figure = Figure(figsize=(6.6 * columns, 3.9 * rows + 0.4), dpi=120, layout='constrained')
    if len(names) == 1:
        figure.suptitle(names[0], fontsize=13)
    grid = figure.add_gridspec(rows, columns)
    for index, panel in enumerate(panels):
        row, column = divmod(index + wide if index else 0, columns)
        cell = grid[0, :] if wide and index == 0 else grid[row, column]
        _draw_panel(figure.add_subplot(cell), panel, names)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix names.

    Raises:
        UsageError: matplotlib does not know the format, or the system refuses the write.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: unknown suffix
        raise UsageError(f'{path}: cannot be written ({error})') from None


def _draw_panel(axes: Axes, panel: Panel, names: list[str]) -> None:
    keys = list(dict.fromkeys(curve.key for curve in panel.curves))
    for curve in panel.curves:
        dash = place = keys.index(curve.key)
        if len(names) > 1:
            place = curve.log
        axes.plot(
            *curve.points,
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[dash % len(DASHES)] if len(names) > 1 else '-',
            linewidth=2.0 if curve.key == 'loss' else 1.4,
            marker='o' if len(curve.points[0]) < FEW_POINTS else None,
            markersize=3.5,
            label=_legend(curve, names, keys),
        )
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(panel.position)
    axes.set_ylabel(panel.value)
    axes.ticklabel_format(axis='y', scilimits=(-3, 6), useMathText=True)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    if len(panel.curves) > 1:
        axes.legend(fontsize=8, frameon=False)


def _legend(curve: Curve, names: list[str], keys: list[str]) -> str:
    parts = [names[curve.log]] * (len(names) > 1) + [curve.key] * (len(keys) > 1 or len(names) == 1)
    return ': '.join(parts)
