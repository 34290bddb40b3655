"""E4: without the gate."""

_base_ = './classify.py'

model = dict(backbone=dict(gate=False))
