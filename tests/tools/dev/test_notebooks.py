"""The stored outputs of the notebooks of docs/; `run_notebooks.py --check` runs the notebooks."""

import json
import re

import pytest

from tests.helpers import ROOT

NOTEBOOKS = sorted((ROOT / 'docs' / 'notebooks').glob('*.ipynb'))
LARGEST = 130_000
"""Characters of the outputs of a cell; pictures take 4 characters for 3 bytes."""


def code_cells(path):
    cells = json.loads(path.read_text())['cells']
    return [cell for cell in cells if cell['cell_type'] == 'code']


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs(path):
    cells = code_cells(path)
    assert [cell['execution_count'] for cell in cells] == list(range(1, len(cells) + 1))
    pictures = 0
    for cell in cells:
        written = json.dumps(cell['outputs'])
        assert len(written) < LARGEST, cell['source']
        assert '/tmp/' not in written, cell['source']
        for output in cell['outputs']:
            assert output['output_type'] != 'error'
            assert output.get('name') != 'stderr'
            text = ''.join(output.get('text', ''))
            assert not re.search(r'[\s(]/\w', text), 'a path of the machine'
            pictures += 'image/jpeg' in output.get('data', {})
    assert pictures >= 2
