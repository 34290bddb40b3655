"""Semantic FPN on ADE20K's 150 classes; the config names the backbone and its channels."""

_base_ = ['mmseg::_base_/models/fpn_r50.py']

model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(_delete_=True, type='mmpola.PolaPVT'),
    decode_head=dict(num_classes=150),
)
