"""Fixtures that more than one folder of tests needs."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / 'tests' / 'data' / 'golden'

sys.path.insert(0, str(ROOT / 'tools'))  # tools are scripts: they import each other by file name


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope='session')
def real_data():
    """Folder with coco_mini, ade20k_mini and imagenet_mini."""
    folder = os.environ.get('MMPOLA_REAL_DATA')
    if not folder:
        pytest.skip('MMPOLA_REAL_DATA is not set: no real data to test on')
    return Path(folder)


@pytest.fixture(scope='session')
def shapes(tmp_path_factory):
    """A small generated data set: 12 training and 4 validation scenes of 96 x 80 pixels."""
    from mmpola.shapes import write_dataset

    folder = tmp_path_factory.mktemp('generated') / 'shapes'
    write_dataset(folder, images=12, val_images=4, size=(96, 80), seed=3)
    return folder


@pytest.fixture
def golden():
    """name -> the tensors of tests/data/golden/name.pt."""
    return lambda name: torch.load(GOLDEN / f'{name}.pt', weights_only=True)
