"""Tables in Markdown."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """Return a Markdown table of all columns except those of dicts."""
    columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    lines = ['| ' + ' | '.join(columns) + ' |', '| ' + ' | '.join('---' for _ in columns) + ' |']
    lines += ['| ' + ' | '.join(_cell(row[name]) for name in columns) + ' |' for row in rows]
    return '\n'.join(lines)


def _cell(value: Any) -> str:
    return f'{value:.2f}' if isinstance(value, float) else f'{value:,}' if isinstance(value, int) else str(value)
