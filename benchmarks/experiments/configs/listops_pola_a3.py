"""E3: PolaFormer, alpha = 3."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=3))
