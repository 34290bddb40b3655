"""What the figures of the experiments have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmpola.files import write_figure

WIDTH = 6.4
"""Inches."""

COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#444444')


@contextmanager
def panels(
    path: Path, number: int, height: float, heights: tuple[float, ...] | None = None
) -> Iterator[list[Any]]:
    """Yield the axes of panels, one below the other, to draw on; then write the figure.

    Args:
        path: of the PNG file.
        number: of panels.
        height: of the figure in inches.
        heights: of the panels, in any unit; None for equal ones.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({'font.size': 12}):
        figure = Figure(figsize=(WIDTH, height), layout='constrained')
        all_axes = figure.subplots(number, squeeze=False, height_ratios=heights)[:, 0]
        yield list(all_axes)
        for axes in all_axes:
            axes.grid(alpha=0.25)
            axes.spines[['top', 'right']].set_visible(False)
        write_figure(path, figure, dpi=120)
