"""What the tests of resuming share."""

import pytest

from mmpola.messages import UsageError

STATE = {
    'message_hub': {},
    'optimizer': {},
    'meta': {'epoch': 2, 'iter': 12, 'experiment_name': 'tiny_20250131_235959'},
}
"""Entries of a checkpoint of tiny.py after two epochs of six steps, next to its weights."""


def refusal(check, *arguments):
    """The message with which `check` refuses."""
    with pytest.raises(UsageError) as raised:
        check(*arguments)
    return str(raised.value)
