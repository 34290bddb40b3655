"""E7: the same from random weights; all layers learn at the same rate."""

_base_ = './raccoons.py'

model = dict(backbone=dict(init_cfg=None))
optim_wrapper = dict(constructor='mmpola.NoDecayOptimizerConstructor', paramwise_cfg=None)
