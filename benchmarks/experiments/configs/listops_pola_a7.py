"""E3: PolaFormer, alpha = 7."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=7))
