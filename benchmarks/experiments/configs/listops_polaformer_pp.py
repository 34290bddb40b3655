"""E3: PolaFormer++."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='polaformer_pp'))
