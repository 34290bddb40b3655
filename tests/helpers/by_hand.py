"""Cases of a test that run only with pytest's --by-hand."""

import pytest


def others_by_hand(names, always):
    """Return parameters for names, of which those outside `always` are marked by_hand."""
    return [
        pytest.param(name, marks=() if name in always else pytest.mark.by_hand) for name in names
    ]
