"""ADE20K (SceneParse150), crops of 512 x 512; test images are resized to multiples of 32 pixels.

Source: the data sets of PVT's Semantic FPN (4 images per GPU) and of PolaFormer++'s LightHam, which
has 8 images per GPU. Both resize twice: keeping the ratio, then to the next multiples.
"""

_base_ = ['mmseg::_base_/datasets/ade20k.py']

train_dataloader = dict(batch_size=4)

test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='ResizeToMultiple', size_divisor=32),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
