"""E3: PolaFormer, alpha = 1."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=1))
