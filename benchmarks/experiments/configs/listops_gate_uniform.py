"""E3: PolaFormer, the gate's initial weight from a uniform distribution."""

_base_ = './listops.py'

model = dict(backbone=dict(attention='pola', alpha=3, gate_init='uniform'))
