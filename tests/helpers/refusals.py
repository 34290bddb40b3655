"""The messages of what is refused."""

import pytest

from mmpola.apps.data_checks import check_data
from mmpola.messages import UsageError


def refusal(function, *arguments, **options):
    """Return the message of the UsageError that a function raises."""
    with pytest.raises(UsageError) as raised:
        function(*arguments, **options)
    return str(raised.value)


def problems(cfg, **options):
    """Return the problems that `check_data` reports of training data."""
    headline, *lines = refusal(check_data, cfg, ('train',), **options).splitlines()
    assert headline == 'the data is not valid'
    return [line.removeprefix('  ') for line in lines]
