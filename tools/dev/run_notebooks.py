"""Runs the notebooks of docs/notebooks and stores their outputs, which the website shows.

    python tools/dev/run_notebooks.py            runs and stores all, in ten minutes on two cores
    python tools/dev/run_notebooks.py --check    runs them on little data and stores nothing

The notebook on a detector trains on the photographs of BCCD, `bccd` in the folder that
MMPOLA_REAL_DATA names, without them on generated shapes. Outputs of cells with the tag `no-output`,
such as progress, are not stored.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from mmpola.messages import UsageError, run_main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'docs' / 'notebooks'

SHORT_RUN = {'IMAGES': 104, 'EPOCHS': 1, 'STEPS': 10}
"""Variables at the top of a notebook -> their values with `--check`."""


def run(path: Path, shorten: bool = False) -> NotebookNode:
    """Run a notebook in a process of its own and return it with its outputs.

    Args:
        path: the notebook, which is not changed.
        shorten: use the values of `SHORT_RUN`.

    Raises:
        UsageError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == 'code']
    if shorten:
        for name, value in SHORT_RUN.items():
            code[0].source = re.sub(
                rf'^{name} = \d+', f'{name} = {value}', code[0].source, flags=re.MULTILINE
            )
    resources = {'metadata': {'path': str(path.parent)}}
    client = NotebookClient(notebook, timeout=1800, record_timing=False, resources=resources)
    try:
        client.execute()
    except CellExecutionError as error:
        raise UsageError(f'{path}: a cell failed\n{error}') from None
    for cell in code:
        keep_results(cell)
    # The name of the kernel's Python and its version differ between machines.
    notebook.metadata = nbformat.read(path, as_version=4).metadata
    return notebook


def keep_results(cell: NotebookNode) -> None:
    """Remove what is no result: warnings, progress, texts of pictures and tables, this folder."""
    if 'no-output' in cell.metadata.get('tags', []):
        cell.outputs = []
    results = []
    for output in cell.outputs:
        if 'text' in output:
            output.text = re.sub(r'\x1b\[[\d;]*m', '', output.text)  # bold letters and colours
            output.text = output.text.replace(f'{ROOT}/', '')
        if output.output_type == 'stream' and output.name == 'stderr':
            continue
        data = output.get('data', {})
        if 'image/jpeg' in data or 'text/html' in data:
            data.pop('text/plain', None)
        results.append(output)
    cell.outputs = results


def main() -> None:
    parser = argparse.ArgumentParser(description='Run the notebooks of the docs')
    parser.add_argument(
        '--check', action='store_true', help='run them on little data and store nothing'
    )
    args = parser.parse_args()
    for path in sorted(FOLDER.glob('*.ipynb')):
        notebook = run(path, shorten=args.check)
        if not args.check:
            nbformat.write(notebook, path)
        print(path.name)


if __name__ == '__main__':
    run_main(main)
