"""A data set that the tests of its layouts share."""

from pathlib import Path

import pytest

from mmpola.shapes import write_dataset


@pytest.fixture(scope='session')
def shapes_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 40 training and 8 validation scenes, seed 0. Tests must not change it."""
    out = tmp_path_factory.mktemp('shapes') / 'set'
    assert write_dataset(out, images=40)
    return out
