"""A small classifier and an image, for the tests of the scripts."""

import numpy as np
import pytest
from PIL import Image

from tests.helpers.training import small_config


@pytest.fixture
def classifier(colours, tmp_path):
    """A config of a small classifier, which reads the centre of an image."""
    path = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'work').dump(path)
    return path


@pytest.fixture
def photo(tmp_path):
    """An image of 90 x 60 pixels."""
    path = tmp_path / 'photo.png'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)).save(path)
    return path
