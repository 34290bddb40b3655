"""The config files in docs/in_your_own_project.md."""

import re

BLOCK = re.compile(r'^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def config_files(root):
    """File name -> text, in the order of the page."""
    page = (root / 'docs' / 'in_your_own_project.md').read_text()
    return {match['name']: match['text'] for match in BLOCK.finditer(page)}
