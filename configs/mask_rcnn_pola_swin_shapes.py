"""Mask R-CNN, a small Pola-Swin, generated shapes, 8 epochs.

Training of the quick start, from random weights.

    python -m mmpola.apps.shapes data/shapes --images 600
    python tools/train.py configs/mask_rcnn_pola_swin_shapes.py    one process: 10 minutes on two CPU cores
    bash tools/dist_train.sh configs/mask_rcnn_pola_swin_shapes.py 2 \\
        --cfg-options train_dataloader.batch_size=1                two processes, as in the quick start: 6 minutes

All other settings are those of mask_rcnn_pola_swin_t_1x.py. Images are 192 x 160 pixels, so heads,
anchors and the numbers of proposals are smaller as well. Initialisation, group norms and small
batches are chosen for learning from random weights in few steps.

Expected mask AP50 on held-out scenes: not in the paper; ours: 84.8 (two CPU cores, log).
"""

_base_ = './mask_rcnn_pola_swin_t_1x.py'

data_root = 'data/shapes/coco/'
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring', 'cross'))
image_scale = (192, 160)  # (W, H) pixels
channels = 64
epochs = 8
norm_cfg = dict(type='GN', num_groups=8)  # of heads that start from random weights
# Objects larger than 56 pixels are read from the map of stride 8, all with one sample per bin.
roi_extractor = dict(out_channels=channels, finest_scale=28, roi_layer=dict(sampling_ratio=1))

model = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8)),
        pretrain_img_size=(160, 192),
        drop_path_rate=0.0,
        init_cfg=None,  # random weights
    ),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=channels, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=channels, feat_channels=channels, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=roi_extractor,
        bbox_head=dict(
            type='ConvFCBBoxHead',
            in_channels=channels,
            num_shared_convs=2,
            conv_out_channels=channels,
            num_shared_fcs=1,
            fc_out_channels=256,
            num_classes=6,
            norm_cfg=norm_cfg,
        ),
        mask_roi_extractor=roi_extractor,
        mask_head=dict(
            in_channels=channels,
            conv_out_channels=channels,
            num_convs=2,
            num_classes=6,
            norm_cfg=norm_cfg,
        ),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=30)),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]

train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(filter_empty_gt=False, min_size=0),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=1,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator

# Random weights need a larger learning rate and more decay than fine-tuning does.
optim_wrapper = dict(
    optimizer=dict(lr=1e-3, weight_decay=0.05, fused=True), clip_grad=dict(max_norm=10.0)
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
train_cfg = dict(max_epochs=epochs, val_interval=epochs)
default_hooks = dict(
    logger=dict(interval=25),
    checkpoint=dict(max_keep_ckpts=1, save_best=None),
)
