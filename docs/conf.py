"""Sphinx configuration: Markdown and notebooks through MyST, the API from docstrings, Furo.

Built by `bash tools/dev/build_docs.sh`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402

import mmpola  # noqa: E402

project = 'mmpola'
author = 'The mmpola authors'
copyright = author
release = version = mmpola.__version__

extensions = [
    'myst_nb',  # reads Markdown and notebooks
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
]
exclude_patterns = ['_build']
nitpicky = True
nitpick_ignore_regex = [
    ('py:.*', r'(?!mmpola\.).*'),  # other libraries' names need the network to resolve
    ('py:class', r'mmpola\..*\.Result'),  # a type variable
]

myst_heading_anchors = 3

nb_execution_mode = 'off'  # notebooks are stored with the outputs of tools/dev/run_notebooks.py

default_role = 'code'  # docstrings mark names with single backticks, as Markdown does
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

html_theme = 'furo'
html_title = 'mmpola'
html_static_path = ['_static']
html_css_files = ['mmpola.css']
html_js_files = ['tables.js']
html_copy_source = False
html_search_scorer = str(ROOT / 'docs' / 'scorer.js')
html_theme_options = {
    'light_css_variables': {'color-brand-primary': '#0072b2', 'color-brand-content': '#0072b2'},
    'dark_css_variables': {'color-brand-primary': '#56b4e9', 'color-brand-content': '#56b4e9'},
}
copybutton_prompt_text = r'\$ '
copybutton_prompt_is_regexp = True

SHOWN_METHODS = {'forward', 'forward_features', 'forward_head', 'init_weights', 'reset_classifier'}
"""Methods that the API reference shows; others are for subclasses, MMEngine and timm."""

LITERAL = re.compile(r'(``.*?``|`[^`]*`)')
SPECIAL = re.compile(r'(\\|\||(?<!\*)\*(?!\*)|(?<=\w)_(?=\W|$))')
PLURAL = re.compile(r'(?<=\w`)(?=\w)')
NUMBER = re.compile(r'-?|\d[\d.,e-]*( (%|MB|M))?( / [\d.,]+| \([\d.,]+\))?')
"""A number in a table, with a unit or a second number. '-' and nothing stand for none."""


OTHER_FOLDERS = re.compile(r'\]\((?!docs/|#|https?:)')
"""The start of a link in README.md to a file outside of docs/."""


def repository() -> str:
    """Return the address of the repository, '' if it is not known.

    REPOSITORY gives it, or the clone from which the site is built, if that comes from the web.
    """
    address = os.environ.get('REPOSITORY', '')
    if not address:
        command = ['git', 'remote', 'get-url', 'origin']
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        address = result.stdout.strip()
    address = re.sub(r'^git@([^:]+):', r'https://\1/', address).removesuffix('.git')
    return address if address.startswith('https://') else ''


ADDRESS = repository()
if ADDRESS.startswith(('https://github.com/', 'https://gitlab.com/')):  # what the theme knows
    html_theme_options['source_repository'] = f'{ADDRESS}/'
    html_theme_options['source_branch'] = 'main'
    html_theme_options['source_directory'] = 'docs/'


def rewrite_readme(app: Any, path: Path, page: str, source: list[str]) -> None:
    """Give the README, which the first page includes, links that are right in docs/."""
    if path == Path('../README.md'):
        source[0] = OTHER_FOLDERS.sub('](../', source[0]).replace('](docs/', '](')
        rewrite_page(app, page, source)


def rewrite_page(app: Any, name: str, source: list[str]) -> None:
    """Give a page the repository's address, and links that differ between site and repository."""
    text = source[0].replace('](../benchmarks/README.md', '](benchmarks.md')
    text = re.sub(r'\]\((\.\./)+mmpola/ops/README\.md', '](/operator.md', text)
    if ADDRESS:
        text = text.replace('git clone ADDRESS mmpola', f'git clone {ADDRESS} mmpola')
        text = text.replace('    # ADDRESS: where you found this repository', '')
        text = text.replace('% [Repository](ADDRESS)', f'[Repository]({ADDRESS})')
    source[0] = text


def escape_docstring(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Escape text in docstrings that reStructuredText would read as markup.

    Examples are |x|, 2 * x, name_ and `Name`s. An indented block after a paragraph is a command or
    code and becomes a literal block.
    """
    written: list[str] = []
    in_code = False
    paragraph = ''  # the last line outside of code
    for number, line in enumerate(lines):
        if in_code and (not line or line.startswith('    ')):
            written.append(line)
            continue
        in_code = (
            line.startswith('    ')
            and number > 0
            and not lines[number - 1]
            and paragraph[:1] not in ('', ' ')
        )
        if in_code:
            written += ['::', '', line]
            continue
        paragraph = line or paragraph
        escaped = ''
        for index, part in enumerate(LITERAL.split(line)):
            is_literal = index % 2 == 1
            if not is_literal:
                part = SPECIAL.sub(r'\\\1', part)
            escaped += part
        written.append(PLURAL.sub(r'\\ ', escaped))
    lines[:] = written


def skip_method(
    app: Any, what: str, name: str, obj: object, skip: bool, options: Any
) -> bool | None:
    """Leave out members of a class that are not part of its public interface."""
    if what == 'class' and name not in SHOWN_METHODS:
        return True
    return None


def mark_tables(app: Any, doctree: nodes.document) -> None:
    """Mark columns of numbers, which the style sheet aligns, and tables with or without them.

    On phones, wide tables and tables with numbers scroll sideways, and others show a block per row.
    """
    for table in doctree.findall(nodes.table):
        rows = list(table.findall(nodes.row))
        kind = 'words'
        if len(rows[0]) > 4:
            kind = 'numbers'
        for column in zip(*(row.children for row in rows), strict=True):
            cells = column[1:]
            texts = [cell.astext() for cell in cells]
            if any(texts) and all(NUMBER.fullmatch(text) for text in texts):
                kind = 'numbers'
                for cell in column:
                    cell['classes'].append('number')
        table['classes'].append(kind)


def setup(app: Any) -> None:
    """Register the hooks. Docstrings are escaped before Napoleon (priority 500) adds markup."""
    app.add_config_value('repository_address', ADDRESS, 'env')  # another one: read all pages again
    app.connect('autodoc-skip-member', skip_method)
    app.connect('autodoc-process-docstring', escape_docstring, priority=400)
    app.connect('doctree-read', mark_tables)
    app.connect('source-read', rewrite_page)
    app.connect('include-read', rewrite_readme)
