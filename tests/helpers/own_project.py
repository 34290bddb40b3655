"""The config files and the inferencers' code in docs/in_your_own_project.md."""

import re

BLOCK = re.compile(r'^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def config_files(root):
    """Return the text of each file by name, in the order of the page."""
    page = (root / 'docs' / 'in_your_own_project.md').read_text()
    return {match['name']: match['text'] for match in BLOCK.finditer(page)}


def code_with(root, word):
    """Return the page's only block of Python, other than config files, that contains a word."""
    page = (root / 'docs' / 'in_your_own_project.md').read_text()
    blocks = re.findall(r'^```python\n(?!# \w+\.py)(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found
