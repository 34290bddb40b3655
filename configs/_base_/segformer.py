"""SegFormer's decoder on ADE20K's 150 classes; the config names the backbone and its channels."""

_base_ = ['mmseg::_base_/models/segformer_mit-b0.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(_delete_=True, type='mmpola.PolaFormerPP'),
    decode_head=dict(num_classes=150),
)
