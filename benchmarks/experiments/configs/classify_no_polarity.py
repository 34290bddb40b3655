"""E4: without polarity: the positive parts of queries and keys only (ReLU)."""

_base_ = './classify.py'

model = dict(backbone=dict(polarity=False))
