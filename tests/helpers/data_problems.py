"""The problems that `check_data` reports of training data."""

import pytest

from mmpola.data.checks import check_data
from mmpola.messages import UsageError


def problems(cfg, whole=False):
    """The lines of the error, without its headline."""
    with pytest.raises(UsageError) as raised:
        check_data(cfg, ('train',), whole=whole)
    headline, *lines = str(raised.value).splitlines()
    assert headline == 'the data is not valid'
    return [line.removeprefix('  ') for line in lines]
