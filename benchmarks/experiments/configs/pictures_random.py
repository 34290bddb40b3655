"""E7: the same from random weights; all layers learn at twice the rate of the fine-tuned head."""

_base_ = './pictures.py'

model = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(init_cfg=None),
)
optim_wrapper = dict(
    constructor='mmpola.NoDecayOptimizerConstructor',
    optimizer=dict(lr=1e-3),
    paramwise_cfg=None,
)
