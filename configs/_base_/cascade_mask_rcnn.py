"""Cascade Mask R-CNN with FPN; a leaf names the backbone and the channels of its stages."""

_base_ = ['mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py']

model = dict(backbone=dict(_delete_=True, type='mmpola.PolaSwin'))
