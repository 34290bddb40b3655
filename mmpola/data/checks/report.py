"""Print the result of `check_data`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mmpola.data.checks.check import Checked


def print_table(checked: list[Checked]) -> None:
    """Print the paths of each data set, then a table with a row of counts for each, then warnings and notes."""
    for data in checked:
        print(f'{", ".join(data.splits)}: {", ".join(map(str, data.paths))}')
    table = Table()
    for heading in ('split', 'kind', 'samples', 'annotations', 'unannotated', 'classes'):
        table.add_column(heading, justify='left' if heading in ('split', 'kind') else 'right')
    for data in checked:
        contents = data.contents
        counts = (contents.images, contents.annotations, contents.unannotated, len(contents.classes))
        table.add_row(', '.join(data.splits), data.name, *(f'{count:,}' if data.kind else '-' for count in counts))
    Console().print(table)
    print_notes(checked)


def print_notes(checked: list[Checked]) -> None:
    """Print the warnings, about what loaders drop, and the notes, about what is unusual in the data."""
    for kind in ('warning', 'note'):
        for line in dict.fromkeys(line for data in checked for line in getattr(data.contents, f'{kind}s')):
            print(f'{kind}: {line}')
