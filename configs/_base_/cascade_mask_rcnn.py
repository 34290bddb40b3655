"""Cascade Mask R-CNN with FPN; the config names the backbone and its channels."""

_base_ = ['mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py']

model = dict(backbone=dict(_delete_=True, type='mmpola.PolaSwin'))
