"""E2: a small Semantic FPN on CamVid, 3,000 steps; the leaves set the backbone.

Void, which CamVid stores as label 11, counts neither in the loss nor in the metric.
"""

_base_ = [
    'mmseg::_base_/models/fpn_r50.py',
    '../../../configs/_base_/adamw.py',
    '../../../configs/_base_/hooks.py',
    'mmseg::_base_/default_runtime.py',
]

custom_imports = dict(imports=['mmpola', 'benchmarks.experiments.baselines'])

steps = 3000
crop_size = (128, 128)  # (H, W) pixels
void = 11
channels = 64
norm_cfg = dict(type='GN', num_groups=8)
classes = (
    'sky',
    'building',
    'pole',
    'road',
    'pavement',
    'tree',
    'sign',
    'fence',
    'car',
    'pedestrian',
    'bicyclist',
)
palette = [
    [128, 128, 128],
    [128, 0, 0],
    [192, 192, 128],
    [128, 64, 128],
    [60, 40, 222],
    [128, 128, 0],
    [192, 128, 128],
    [64, 64, 128],
    [64, 0, 128],
    [64, 64, 0],
    [0, 128, 192],
]

model = dict(
    pretrained=None,
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    data_preprocessor=dict(size=crop_size, seg_pad_val=void, test_cfg=dict(size_divisor=32)),
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaSwin',
        arch=dict(embed_dims=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8)),
        pretrain_img_size=crop_size,
        drop_path_rate=0.0,
    ),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=channels, norm_cfg=norm_cfg),
    decode_head=dict(
        in_channels=[channels] * 4,
        channels=channels,
        num_classes=len(classes),
        ignore_index=void,
        norm_cfg=norm_cfg,
        loss_decode=dict(avg_non_ignore=True),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75, ignore_index=void),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset',
    data_root='data/camvid/',
    metainfo=dict(classes=classes, palette=palette),
    img_suffix='.png',
    seg_map_suffix='.png',
    ignore_index=void,
)
# One process, so that its CPU time is that of the run.
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='train', seg_map_path='trainannot'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='val', seg_map_path='valannot'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = dict(
    val_dataloader,
    dataset=dict(
        val_dataloader['dataset'],
        data_prefix=dict(img_path='test', seg_map_path='testannot'),
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'], ignore_index=void)
test_evaluator = val_evaluator

optim_wrapper = dict(
    optimizer=dict(lr=1e-3, weight_decay=0.05, fused=True), clip_grad=dict(max_norm=10.0)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=100, end=steps),
]
train_cfg = dict(type='mmpola.ExactIterLoop', max_iters=steps, val_interval=steps // 6)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
randomness = dict(seed=0)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    **_base_.training_hooks,
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
default_hooks['checkpoint'].update(by_epoch=False, interval=250, max_keep_ckpts=1, save_best='mIoU')
