"""E2: a small Semantic FPN on CamVid from random weights; the leaves set the backbone.

All layers learn at the same rate.
"""

_base_ = './segment.py'

model = dict(backbone=dict(init_cfg=None))
optim_wrapper = dict(constructor='mmpola.NoDecayOptimizerConstructor', paramwise_cfg=None)
