"""Files of the repository that pages and shell scripts name exist."""

import re

import pytest

PAGES = ('*.md', 'docs/*.md', 'docs/api/*.md', 'benchmarks/*.md', 'mmpola/ops/*.md', 'tools/*.sh')
NAMED_PATH = re.compile(
    r'(?<![\w/.-])(?:mmpola|tests|tools)/[\w/]*\w(?:\.(?:py|sh|md))?'
    r'(?![\w/*-]|\.\w)'
)
PLACEHOLDER = 'mmpola/backbones/NAME.py'


def named_paths(text):
    """Return the paths of files with a known suffix, and the folders, that a text names."""
    found = set(NAMED_PATH.findall(text))
    return found - {PLACEHOLDER}


@pytest.mark.parametrize('pattern', PAGES)
def test_named_files_exist(root, pattern):
    pages = sorted(root.glob(pattern))
    assert pages, f'no page {pattern}'
    missing = [
        f'{page.relative_to(root)}: {name}'
        for page in pages
        for name in sorted(named_paths(page.read_text()))
        if not (root / name).exists()
    ]
    assert missing == []
