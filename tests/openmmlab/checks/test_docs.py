"""The page of the command line lists the checks."""

import mmpola.openmmlab.checks  # noqa: F401  which fills the table
from mmpola.openmmlab.checks.table import CHECKS


def test_the_page_has_the_table_of_checks(root):
    table = sorted(CHECKS.values(), key=lambda one: one.asked)
    rows = [f'| `{one.name}` | {one.level} | {one.about} |' for one in table]
    text = (root / 'docs' / 'tools.md').read_text()
    assert (
        '\n'.join(['| check | level | what it finds |', '| --- | --- | --- |', *rows, '']) in text
    )
