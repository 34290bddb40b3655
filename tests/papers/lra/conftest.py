"""Data sets whose tokens are cached in the test's own folder."""

import pytest
from mmengine.registry import DATASETS


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the cached tokens."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    return tmp_path / 'cache' / 'mmpola' / 'tokens'


@pytest.fixture
def build():
    """A function that builds a data set of the scope mmpola."""

    def build(name, root, split='train', **arguments):
        return DATASETS.build(
            {'type': f'mmpola.{name}', 'root': str(root), 'split': split, **arguments}
        )

    return build
