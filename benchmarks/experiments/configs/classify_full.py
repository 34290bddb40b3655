"""E4: the whole attention."""

_base_ = './classify.py'
