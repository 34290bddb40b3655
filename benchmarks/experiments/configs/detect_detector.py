"""E8: blood cells from the whole detector of everyday things that comes with mmpola."""

_base_ = './detect.py'

load_from = 'mmpola://faster_rcnn_pola_swin_small'
model = dict(
    backbone=dict(init_cfg=None),
    roi_head=dict(bbox_head=dict(reg_class_agnostic=True)),
)
