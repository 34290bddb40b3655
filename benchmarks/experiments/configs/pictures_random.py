"""E7: the same from random weights."""

_base_ = './pictures.py'

model = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(init_cfg=None),
)
