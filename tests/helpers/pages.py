"""The code that the pages of the documentation print."""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r'^```(?P<language>\w+)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def code_blocks(page: Path, language: str = 'python') -> list[str]:
    """Return the text of a page's code blocks in one language, in their order."""
    return [
        match['text'] for match in FENCE.finditer(page.read_text()) if match['language'] == language
    ]
