"""The weights that conversions start from."""

import pytest

from tests.helpers.models import classifier


@pytest.fixture
def weights():
    """Tensors of the small classifier that is converted, by name."""
    return classifier().state_dict()
