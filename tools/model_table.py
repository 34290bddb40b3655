"""Writes the README's table of models from the configs: their docstrings say task, data, schedule, metric and source.

python tools/model_table.py [--check]        --check changes nothing; exit status 1 if the README is out of date
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from runtime import UsageError, run_main

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = '<!-- models: written by tools/model_table.py -->', '<!-- end of models -->'
EXPECTED = re.compile(r'Expected (?P<metric>[^:]+): (?P<paper>[^;]+); ours: (?P<ours>.+)\.$', re.MULTILINE)


def row(config: Path) -> str:
    """One line of the table.

    Raises:
        UsageError: the docstring lacks its parts.
    """
    text = ast.get_docstring(ast.parse(config.read_text())) or ''
    expected = EXPECTED.search(text)
    title = text.split('\n', 1)[0].rstrip('.')
    if expected is None or title.count(', ') < 2:
        raise UsageError(
            f"{config}: the docstring must begin 'MODEL, BACKBONE, DATA, SCHEDULE.' and have a line "
            "'Expected METRIC: VALUE (SOURCE); ours: RESULT.'"
        )
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    paper = '-' if expected['paper'].startswith('no') else expected['paper']  # 'not printed', 'no figure'
    link = f'[{config.stem}](configs/{config.name})'
    return f'| {link} | {title} | {parameters:.1f} M | {expected["metric"]} | {paper} | {expected["ours"]} |'


def table() -> str:
    """The whole table in Markdown."""
    rows = [row(config) for config in sorted((ROOT / 'configs').glob('*.py'))]
    heading = ['| config | what | parameters | metric | paper | ours |', '| --- | --- | --- | --- | --- | --- |']
    return '\n'.join(heading + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the README's table of models")
    parser.add_argument('--check', action='store_true', help='change nothing; fail if the README is out of date')
    check = parser.parse_args().check
    page = ROOT / 'README.md'
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f'{page}: the lines {BEGIN} and {END} must stand in it')
    written = f'{before}{BEGIN}\n\n{table()}\n\n{END}{after}'
    if check and written != text:
        raise UsageError(f'{page}: the table of models is out of date; run python tools/model_table.py')
    if not check:
        page.write_text(written)


if __name__ == '__main__':
    run_main(main)
