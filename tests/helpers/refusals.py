"""The messages of what is refused, and what the checks of data find."""

import re

import pytest

from mmpola.messages import UsageError
from mmpola.openmmlab.checks import check_data

NAMED = re.compile(r'(?P<text>.*) \[(?P<name>[a-z0-9-]+)\]')
"""A line of a check."""


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


def errors(cfg, splits=('train',), **options):
    """Return (name of the check, text) of each error that `check_data` finds."""
    message = refusal(check_data, cfg, splits, **options)
    message = message.removeprefix('the data is not valid: ')
    lines = [line.strip() for line in message.splitlines()]
    found = [NAMED.fullmatch(line) for line in lines if not line.startswith('warning: ')]
    return [(line['name'], line['text']) for line in found if line is not None]


def warnings(cfg, splits=('train',), **options):
    """Return (name of the check, text) of each warning that `check_data` finds."""
    return [(one.name, one.text) for one in check_data(cfg, splits, **options).found]


def only(found, name):
    """Return the text of the only thing that was found, which the check of this name says."""
    assert [one for one, _ in found] == [name], found
    return found[0][1]
