"""E3: PolaFormer, the gate's initial weight all zeros."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=3, gate_init='zeros'))
