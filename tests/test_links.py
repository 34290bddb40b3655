"""Links of the pages lead to a file and a heading in it; the files that they name exist."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import ROOT

PAGES = [
    ROOT / 'README.md',
    ROOT / 'CONTRIBUTING.md',
    ROOT / 'CHANGELOG.md',
    ROOT / 'benchmarks' / 'README.md',
    ROOT / 'mmpola' / 'ops' / 'README.md',
    *sorted((ROOT / 'docs').glob('*.md')),
    *sorted((ROOT / 'docs' / 'api').glob('*.md')),
    *sorted((ROOT / 'docs' / 'notebooks').glob('*.ipynb')),
]
SCRIPTS = sorted((ROOT / 'tools').glob('*.sh'))
NAMED_PATH = re.compile(
    r'(?<![\w/.-])(?:mmpola|tests|tools)/[\w/]*\w(?:\.(?:py|sh|md))?'
    r'(?![\w/*-]|\.\w)'
)
PLACEHOLDER = 'mmpola/backbones/NAME.py'
LINK = re.compile(r'\]\(([^)\s]+)\)|<a href="([^"]+)"|<img src="([^"]+)"')


def text_of(page):
    """Return a page's Markdown without its code."""
    text = page.read_text()
    if page.suffix == '.ipynb':
        cells = json.loads(text)['cells']
        text = '\n\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] != 'code')
    return re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page):
    """Return the anchors of a page's headings, as GitHub and MyST name them."""
    names = set()
    for heading in re.findall(r'^#+ (.+)$', text_of(page), re.MULTILINE):
        plain = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading)
        names.add(re.sub(r'[^\w\- ]', '', plain.lower()).replace(' ', '-'))
    return names


def links(page):
    for groups in LINK.findall(text_of(page)):
        target = ''.join(groups)
        if not re.match(r'\w+:', target) and target != 'ADDRESS':
            yield target


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page(page):
    for target in links(page):
        path, _, anchor = target.partition('#')
        file = page
        if path:
            file = (page.parent / path).resolve()
        assert file.exists(), target
        if anchor and Path(file).suffix in ('.md', '.ipynb'):
            assert anchor in anchors(file), target


@pytest.mark.parametrize('page', [*PAGES, *SCRIPTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page):
    """Files with a known suffix, and folders."""
    named = set(NAMED_PATH.findall(page.read_text())) - {PLACEHOLDER}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
