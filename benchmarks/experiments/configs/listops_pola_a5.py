"""E3: PolaFormer, alpha = 5."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=5))
