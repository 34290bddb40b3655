"""RetinaNet with FPN on strides 8, 16, 32; the config names the backbone and its channels.

The backbone returns only the three maps that the FPN reads: the norm of an unread output would get
no gradient, and distributed training would stop.
"""

_base_ = ['mmdet::_base_/models/retinanet_r50_fpn.py']

model = dict(
    backbone=dict(_delete_=True, type='mmpola.PolaPVT', out_indices=(1, 2, 3)),
    neck=dict(start_level=0, num_outs=5),
)
