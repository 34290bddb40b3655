"""Progress on a terminal and in a log."""

from functools import partial

import pytest
from rich.console import Console

from mmpola import progress as module
from mmpola.progress import progress


def test_bytes_on_a_terminal_have_their_unit(monkeypatch, capsys):
    monkeypatch.setattr(
        module, 'Console', partial(Console, force_terminal=True, color_system=None, width=100)
    )
    with progress('reading', 306_400, unit=' kB', size=1000) as advance:
        advance(122_700)
    assert '122/306 kB' in capsys.readouterr().out


@pytest.mark.parametrize(('total', 'lines'), [(999_999, 0), (1_000_000, 10)])
def test_bytes_in_a_log_are_shown_for_large_files_only(total, lines, capsys):
    with progress('reading', total, unit=' kB', size=1000) as advance:
        for _ in range(10):
            advance(total // 10 + 1)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == lines
    assert all(line.endswith(' of 1,000 kB') for line in printed)
