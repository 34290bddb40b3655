"""E4: without the convolution of the values."""

_base_ = './classify.py'

model = dict(backbone=dict(mixing=None))
