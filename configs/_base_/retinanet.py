"""RetinaNet with FPN on strides 8, 16, 32; a leaf names the backbone and the channels of these three stages.

The backbone gives the three maps that the FPN reads and no fourth, whose output norm would never get a gradient.
"""

_base_ = ['mmdet::_base_/models/retinanet_r50_fpn.py']

model = dict(
    backbone=dict(_delete_=True, type='mmpola.PolaPVT', out_indices=(1, 2, 3)),
    neck=dict(start_level=0, num_outs=5),
)
