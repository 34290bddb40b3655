"""The Python of docs/in_your_own_network.md runs if the packages that it uses are installed."""

import re
from importlib.util import find_spec

import pytest
import torch

from tests.helpers.pages import code_blocks

SHAPES = {
    'attention': {'maps': (2, 256, 30, 40), 'tokens': (2, 1200, 256), 'output': (2, 100, 256)},
    'MapAttention': {'logits': (2, 10)},
    'TokenAttention': {'logits': (2, 10)},
    'mmdet': {'memory': (2, 950, 256)},
    'TransformerEncoderLayer': {'memory': (2, 950, 256)},
    'Classifier': {'logits': (3, 2)},
}
"""A word of each block, in their order -> shapes of what it computes."""


@pytest.mark.parametrize('index', range(len(SHAPES)), ids=list(SHAPES))
def test_a_block_runs(index, root, tmp_path, monkeypatch):
    blocks = code_blocks(root / 'docs' / 'in_your_own_network.md')
    assert len(blocks) == len(SHAPES)
    word, shapes = list(SHAPES.items())[index]
    assert word in blocks[index]
    for package in re.findall(r'^(?:from|import) (\w+)', blocks[index], re.MULTILINE):
        if find_spec(package) is None:
            pytest.skip(f'{package} is not installed')
    monkeypatch.chdir(tmp_path)
    names = {'__name__': 'page'}
    exec(blocks[index], names)
    assert {name: tuple(names[name].shape) for name in shapes} == shapes
    for value in names.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert value.isfinite().all()
