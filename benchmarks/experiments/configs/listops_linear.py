"""E3: linear attention (elu + 1)."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='linear'))
