"""UperNet with an auxiliary FCN head on ADE20K's 150 classes; the config names the backbone.

It also names the backbone's channels.
"""

_base_ = ['mmseg::_base_/models/upernet_swin.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(_delete_=True, type='mmpola.PolaSwin'),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
