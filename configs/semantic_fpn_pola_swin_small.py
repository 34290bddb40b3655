"""Semantic FPN, a small Pola-Swin, generated shapes, 3,000 steps.

A segmenter for label maps of your own: 1.9 million parameters, which learn crops of small
photographs in minutes of one CPU core. The backbone starts from weights that come with mmpola. As
it stands, it reads the generated scenes of

    python -m mmpola.openmmlab.shapes data/shapes --images 600
    python tools/train.py configs/semantic_fpn_pola_swin_small.py

Eleven lines inherit from it. Label maps are PNG files with the number of the class in every pixel,
and 255 (`void`) where there is none:

    _base_ = __import__('mmpola').__path__[0] + '/.mim/configs/semantic_fpn_pola_swin_small.py'

    metainfo = dict(classes=('road', 'grass'))
    data = dict(data_root='data/streets/', metainfo=metainfo)
    train = dict(**data, data_prefix=dict(img_path='train', seg_map_path='train_labels'))
    val = dict(**data, data_prefix=dict(img_path='val', seg_map_path='val_labels'))

    model = dict(decode_head=dict(num_classes=2))
    train_dataloader = dict(dataset=train)
    val_dataloader = dict(dataset=val)
    test_dataloader = dict(dataset=val)

Photographs are .jpg, or `img_suffix` in `data`. Training resizes them to 0.5 to 1.5 times
`image_scale` and cuts out crops; validation reads them at `image_scale`:

    _base_.train_dataloader.dataset.pipeline[2].scale = (640, 480)
    _base_.val_dataloader.dataset.pipeline[1].scale = (640, 480)
    _base_.test_dataloader.dataset.pipeline[1].scale = (640, 480)

Six validations; the checkpoint with the best mIoU stays as best_*.pth. On the test split of CamVid
mIoU is 50.2, from random weights 31.2 (three seeds each, docs/results.md).
"""

_base_ = [
    'mmseg::_base_/models/fpn_r50.py',
    './_base_/adamw.py',
    './_base_/hooks.py',
    'mmseg::_base_/default_runtime.py',
]

image_scale = (480, 360)  # (W, H) pixels, the largest that an image is resized to
crop_size = (128, 128)  # (H, W) pixels
data_root = 'data/shapes/ade/'
metainfo = dict(classes=('background', 'circle', 'square', 'triangle', 'star', 'ring', 'cross'))
steps = 3000
channels = 64
norm_cfg = dict(type='GN', num_groups=8)  # of heads that start from random weights

model = dict(
    pretrained=None,
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    data_preprocessor=dict(size=crop_size, test_cfg=dict(size_divisor=32)),
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaSwin',
        arch='nano',
        pretrain_img_size=crop_size,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_nano'),
    ),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=channels, norm_cfg=norm_cfg),
    decode_head=dict(
        in_channels=[channels] * 4,
        channels=channels,
        num_classes=len(metainfo['classes']),
        norm_cfg=norm_cfg,
        loss_decode=dict(avg_non_ignore=True),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=image_scale, ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_scale, keep_ratio=True),
    dict(type='LoadAnnotations'),  # after resizing: the metric compares at the label map's size
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=metainfo,
    img_suffix='.jpg',
    seg_map_suffix='.png',
)

train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

# The neck and the head start from random weights and learn fast; the backbone has been trained.
optim_wrapper = dict(
    constructor='mmpola.LayerDecayOptimizerConstructor',
    optimizer=dict(lr=1e-3, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(decay_rate=1.0, backbone_lr_mult=0.3),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=100, end=steps),
]
train_cfg = dict(type='mmpola.ExactIterLoop', max_iters=steps, val_interval=steps // 6)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    **_base_.training_hooks,
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
default_hooks['checkpoint'].update(
    by_epoch=False, interval=steps // 6, max_keep_ckpts=1, save_best='mIoU'
)
