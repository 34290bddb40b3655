"""An image, for the tests of the scripts."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photo(tmp_path):
    """An image of 90 x 60 pixels."""
    path = tmp_path / 'photo.png'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)).save(path)
    return path
