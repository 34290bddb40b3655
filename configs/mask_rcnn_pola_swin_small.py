"""Mask R-CNN, a small Pola-Swin, generated shapes, 8 epochs.

A detector for boxes and masks of your own: faster_rcnn_pola_swin_small.py with a mask head. The
backbone starts from weights that come with mmpola. As it stands, it reads the generated scenes of

    python -m mmpola.openmmlab.shapes data/shapes --images 600
    python tools/train.py configs/mask_rcnn_pola_swin_small.py

Lines that inherit from it, for masks in COCO's format:

    _base_ = __import__('mmpola').__path__[0] + '/.mim/configs/mask_rcnn_pola_swin_small.py'

    metainfo = dict(classes=('cat', 'dog'))  # as in the annotations
    data = dict(data_root='data/animals/', metainfo=metainfo)
    train = dict(**data, ann_file='train.json', data_prefix=dict(img='train/'))
    val = dict(**data, ann_file='val.json', data_prefix=dict(img='val/'))

    model = dict(roi_head=dict(bbox_head=dict(num_classes=2), mask_head=dict(num_classes=2)))
    train_dataloader = dict(dataset=train)
    val_dataloader = dict(dataset=val)
    test_dataloader = dict(dataset=val)

The network reads images of at most 256 x 192 pixels. Another size is set where it is read:

    _base_.train_dataloader.dataset.pipeline[2].scale = (512, 384)
    _base_.val_dataloader.dataset.pipeline[1].scale = (512, 384)
    _base_.test_dataloader.dataset.pipeline[1].scale = (512, 384)

Every epoch is followed by a validation; the checkpoint with the best mask AP stays as best_*.pth.
AP is COCO's, computed from the boxes and masks that the data set reads.
"""

_base_ = './faster_rcnn_pola_swin_small.py'

data_root = 'data/shapes/coco/'
metainfo = dict(classes=('circle', 'square', 'triangle', 'star', 'ring', 'cross'))
channels = 64

model = dict(
    type='MaskRCNN',
    data_preprocessor=dict(pad_mask=True),
    roi_head=dict(
        bbox_head=dict(num_classes=len(metainfo['classes'])),
        mask_roi_extractor=dict(
            type='SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=1),
            out_channels=channels,
            finest_scale=28,
            featmap_strides=[4, 8, 16, 32],
        ),
        mask_head=dict(
            type='FCNMaskHead',
            in_channels=channels,
            conv_out_channels=channels,
            num_convs=2,
            num_classes=len(metainfo['classes']),
            norm_cfg=_base_.norm_cfg,
            loss_mask=dict(type='CrossEntropyLoss', use_mask=True),
        ),
    ),
    train_cfg=dict(rcnn=dict(mask_size=28)),
    test_cfg=dict(rcnn=dict(mask_thr_binary=0.5)),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=_base_.image_scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=_base_.image_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),  # drawn beside the predictions
    dict(
        type='PackDetInputs',
        # `instances`: CocoMetric reads the true boxes and masks from the data set.
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances'),
    ),
]

dataset = dict(_delete_=True, type='CocoDataset', data_root=data_root, metainfo=metainfo)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        **dataset,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        filter_cfg=dict(bbox_min_size=1),  # a box without extent would make the loss NaN
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        pipeline=test_pipeline,
        test_mode=True,
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator

default_hooks = dict(checkpoint=dict(save_best='coco/segm_mAP'))
