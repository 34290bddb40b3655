"""How figures are saved: format, resolution, colours and size, for a screen or for a paper."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from mmpola.apps.analysis.maps import COLOUR_MAP
from mmpola.messages import UsageError, suggestion

FORMATS = ('png', 'svg', 'pdf')
DEFAULT_FORMATS = ('png', 'svg')


@dataclass(frozen=True)
class Style:
    """How figures are saved.

    Attributes:
        dpi: pixels per inch of a PNG, and of what is a bitmap in an SVG or a PDF.
        colour_map: matplotlib's name of the colours of maps.
        width: of the figure in inches, None for its own; the height follows, and texts keep their
            size in points.
        title: whether the figure has one; those of its panels stay.
    """

    dpi: float = 110
    colour_map: str = COLOUR_MAP
    width: float | None = None
    title: bool = True


DEFAULT_STYLE = Style()


def add_style_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `style_of` reads."""
    parser.add_argument(
        '--dpi', type=float, default=Style.dpi, help=f'pixels per inch (default: {Style.dpi})'
    )
    parser.add_argument(
        '--cmap',
        default=COLOUR_MAP,
        metavar='NAME',
        help=f"matplotlib's colour map of maps (default: {COLOUR_MAP})",
    )
    parser.add_argument(
        '--width-inches',
        type=float,
        metavar='WIDTH',
        help='of a figure (default: fits its content)',
    )


def style_of(args: argparse.Namespace, title: bool = True) -> Style:
    """Return the style that the options of `add_style_arguments` describe.

    Raises:
        UsageError: a number is out of range, or matplotlib has no such colour map.
    """
    if not 10 <= args.dpi <= 1200:
        raise UsageError(f'--dpi: expected a number from 10 to 1200, got {args.dpi:g}')
    width = args.width_inches  # a page is 8 inches wide; Agg refuses images of 65,536 pixels
    if width is not None and not 1 <= width <= 50:
        raise UsageError(f'--width-inches: expected a number from 1 to 50, got {width:g}')
    if args.cmap not in matplotlib.colormaps:
        meant = suggestion(args.cmap, list(matplotlib.colormaps))
        raise UsageError(f'--cmap: expected a colour map of matplotlib, got {args.cmap}{meant}')
    return Style(args.dpi, args.cmap, width, title)


def save_figure(figure: Figure, path: Path, style: Style) -> None:
    """Write a figure into a file; its suffix is one of `FORMATS`.

    Texts of an SVG or a PDF stay texts.

    Raises:
        UsageError: the system refuses to write the file.
    """
    if not style.title:
        figure.suptitle('', in_layout=False)
    if style.width is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(style.width, height * style.width / width)
    for image in figure.findobj(AxesImage):
        if image.get_cmap().name == COLOUR_MAP:
            image.set_cmap(style.colour_map)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({'svg.fonttype': 'none', 'pdf.fonttype': 42}):
            figure.savefig(path, dpi=style.dpi)
    except OSError as error:
        raise UsageError(f'{path}: cannot be written ({error})') from None
