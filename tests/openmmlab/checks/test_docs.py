"""The page of the command line lists the checks, and tests name them."""

import mmpola.openmmlab.checks  # noqa: F401  which fills the table
from mmpola.openmmlab.checks.table import CHECKS


def test_the_page_has_the_table_of_checks(root):
    table = sorted(CHECKS.values(), key=lambda one: one.asked)
    rows = [f'| `{one.name}` | {one.level} | {one.about} |' for one in table]
    text = (root / 'docs' / 'tools.md').read_text()
    assert (
        '\n'.join(['| check | level | what it finds |', '| --- | --- | --- |', *rows, '']) in text
    )


def test_every_check_is_named_by_a_test(root):
    text = '\n'.join(path.read_text() for path in (root / 'tests').rglob('*.py'))
    unnamed = [name for name in CHECKS if f"'{name}'" not in text and f'[{name}]' not in text]
    assert not unnamed
