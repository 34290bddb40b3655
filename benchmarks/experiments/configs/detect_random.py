"""E1: the small Faster R-CNN on BCCD from random weights; the leaves set the backbone.

All layers learn at the same rate.
"""

_base_ = './detect.py'

model = dict(backbone=dict(init_cfg=None))
optim_wrapper = dict(constructor='mmpola.NoDecayOptimizerConstructor', paramwise_cfg=None)
