"""The code that the pages of the documentation print."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

FENCE = re.compile(r'^```(?P<language>\w+)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def code_blocks(page: Path, language: str = 'python') -> list[str]:
    """Return the text of a page's code blocks in one language, in their order."""
    return [
        match['text'] for match in FENCE.finditer(page.read_text()) if match['language'] == language
    ]


def commands_of(page: Path, block: int) -> list[str]:
    """Return the commands of a page's shell block, given by its number, without comments."""
    lines = code_blocks(page, 'bash')[block].splitlines()
    commands = [line.partition('#')[0].strip() for line in lines]
    return [command for command in commands if command]


def block_with(blocks: list[str], text: str) -> str:
    """Return the only block that contains a text."""
    (found,) = (block for block in blocks if text in block)
    return found


def needs(module: str) -> ModuleType:
    """Import a module, or skip the test if its package is not installed."""
    if find_spec(module.partition('.')[0]) is None:
        pytest.skip(f'{module} is not installed')
    return import_module(module)
