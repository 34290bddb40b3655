"""Mask R-CNN with FPN on COCO instances; a leaf names the backbone and the channels of its stages."""

_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
]

model = dict(backbone=dict(_delete_=True, type='mmpola.PolaSwin'))
