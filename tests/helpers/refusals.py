"""The messages of what is refused."""

import pytest

from mmpola.apps.data_checks import check_data
from mmpola.messages import UsageError


def refusal(function, *arguments, **options):
    """Return the message of the UsageError that a function raises."""
    with pytest.raises(UsageError) as raised:
        function(*arguments, **options)
    return str(raised.value)


def assert_lines(lines, *expected):
    """Assert that each line has its (start, word, end): the subject, the rule, what breaks it."""
    assert len(lines) == len(expected), lines
    for line, (start, word, end) in zip(lines, expected, strict=True):
        assert line.startswith(str(start))
        assert word in line
        assert line.endswith(str(end))


def problems(cfg, **options):
    """Return the problems that `check_data` reports of training data."""
    message = refusal(check_data, cfg, ('train',), **options)
    start, separator, rest = message.partition('the data is not valid')
    assert separator
    assert not start
    return [line.strip() for line in rest.removeprefix(': ').strip().splitlines()]
