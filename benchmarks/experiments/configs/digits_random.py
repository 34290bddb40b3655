"""E7: the same from random weights."""

_base_ = './digits.py'

model = _base_.from_random_weights
