"""Faster R-CNN, a small Pola-Swin, BCCD, 8 epochs.

A detector for boxes of your own, without masks: 2.7 million parameters, which learn small images in
minutes of one CPU core. The backbone starts from weights that come with mmpola. As it stands, it
reads the 364 photographs of blood cells of https://github.com/Shenggan/BCCD_Dataset in Pascal VOC's
format (its folder BCCD as data/bccd):

    python tools/train.py configs/faster_rcnn_pola_swin_small.py

Eleven lines inherit from it. For annotations in Pascal VOC's format:

    _base_ = __import__('mmpola').__path__[0] + '/.mim/configs/faster_rcnn_pola_swin_small.py'

    metainfo = dict(classes=('cat', 'dog'))  # as in the annotations
    data = dict(data_root='data/animals/', metainfo=metainfo)
    train = dict(**data, ann_file='ImageSets/Main/train.txt')
    val = dict(**data, ann_file='ImageSets/Main/val.txt')

    model = dict(roi_head=dict(bbox_head=dict(num_classes=2)))
    train_dataloader = dict(dataset=train)
    val_dataloader = dict(dataset=val)
    test_dataloader = dict(dataset=val)

For COCO's format, `data` also has type='CocoDataset', and `train` and `val` have
`ann_file='annotations/train.json'` and `data_prefix=dict(img='train/')`.

The network reads images of `image_scale` pixels. In this file it is set once; a config that inherits
sets it where it is read:

    _base_.train_dataloader.dataset.pipeline[2].scale = (512, 384)
    _base_.val_dataloader.dataset.pipeline[1].scale = (512, 384)
    _base_.test_dataloader.dataset.pipeline[1].scale = (512, 384)

Every epoch is followed by a validation, whose log has AP per class; the checkpoint with the best AP
stays as best_*.pth. AP is COCO's, computed from the boxes that the data set reads. Validation and
test read one image at a time, as prediction does: in a batch of unequal images the padding of one
would change its boxes. Boxes narrower or lower than a pixel are not trained on. Box AP on the test split is 51.9, from random weights 48.4
(three seeds each, docs/results.md).
"""

_base_ = [
    'mmdet::_base_/models/faster-rcnn_r50_fpn.py',
    './_base_/adamw.py',
    './_base_/hooks.py',
    'mmdet::_base_/default_runtime.py',
]

image_scale = (256, 192)  # (W, H) pixels, the largest that an image is resized to
data_root = 'data/bccd/'
metainfo = dict(classes=('RBC', 'WBC', 'Platelets'))
epochs = 8
channels = 64
norm_cfg = dict(type='GN', num_groups=8)  # of heads that start from random weights

model = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaSwin',
        arch='nano',
        pretrain_img_size=image_scale[::-1],
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_nano'),
    ),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=channels, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=channels, feat_channels=channels, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        # Objects larger than 56 pixels are read from the map of stride 8, with one sample per bin.
        bbox_roi_extractor=dict(
            out_channels=channels, finest_scale=28, roi_layer=dict(sampling_ratio=1)
        ),
        bbox_head=dict(
            type='ConvFCBBoxHead',
            in_channels=channels,
            num_shared_convs=2,
            conv_out_channels=channels,
            num_shared_fcs=1,
            fc_out_channels=256,
            num_classes=len(metainfo['classes']),
            norm_cfg=norm_cfg,
        ),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=64, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100)),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(
        type='PackDetInputs',
        # `instances`: CocoMetric reads the true boxes from the data set, whatever its format.
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances'),
    ),
]
dataset = dict(
    type='XMLDataset',
    data_root=data_root,
    metainfo=metainfo,
    data_prefix=dict(sub_data_root=''),
)

train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        **dataset,
        ann_file='ImageSets/Main/train.txt',
        filter_cfg=dict(bbox_min_size=1),  # a box without extent would make the loss NaN
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,  # attention and GroupNorm would read the padding beside a larger image
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset, ann_file='ImageSets/Main/val.txt', pipeline=test_pipeline, test_mode=True
    ),
)
test_dataloader = dict(
    batch_size=1,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset, ann_file='ImageSets/Main/test.txt', pipeline=test_pipeline, test_mode=True
    ),
)
val_evaluator = dict(type='CocoMetric', metric='bbox', classwise=True)
test_evaluator = val_evaluator

# The neck and the heads start from random weights and learn fast; the backbone has been trained.
optim_wrapper = dict(
    constructor='mmpola.LayerDecayOptimizerConstructor',
    optimizer=dict(lr=1e-3, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(decay_rate=1.0, backbone_lr_mult=0.3),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=epochs,
        T_max=epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(type='mmpola.ExactEpochLoop', max_epochs=epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(logger=dict(interval=25), **_base_.training_hooks)
default_hooks['checkpoint'].update(interval=1, max_keep_ckpts=1, save_best='coco/bbox_mAP')
