"""A small network learns the logits of EfficientNet-Lite0 on photographs without labels.

The teacher sees the same crop as the network, at 160 pixels. Its weights come in a package, so that
nothing is downloaded from a hub. The rate is constant after a short warm-up and falls in the last
quarter: a run that goes on with more photographs loses nothing, and the average of the weights is
usable at any time.
"""

_base_ = ['./classification.py', './adamw.py']

data_root = 'data/photographs/'
crop = 96  # pixels
steps = 60_000
decay_begin = 45_000
to_crop = dict(input_size=crop, interpolation='bicubic')

model = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(arch='nano', pretrain_img_size=crop),
    data_preprocessor=dict(label_smoothing=0.0),
    teacher=dict(
        type='mmpola.OnnxTeacher',
        file='checkpoints/efficientnet_lite0.onnx',
        image_size=160,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
    ),
    distillation=dict(kind='soft', temperature=2.0, weight=1.0),
)
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    dataset=dict(
        _delete_=True,
        type='mmpola.UnlabelledImages',
        root=data_root + 'train',
        training=True,
        transform=dict(**to_crop, scale=(0.25, 1.0), color_jitter=0.2),
    ),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    dataset=dict(
        root=data_root + 'val',
        classes='imagenet-1k',
        transform=dict(**to_crop, crop_pct=1.0, crop_mode='center'),
    ),
)
test_dataloader = val_dataloader

optim_wrapper = dict(
    type='mmpola.BFloat16OptimWrapper',
    optimizer=dict(lr=1.5e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.01,
        by_epoch=False,
        begin=decay_begin,
        end=steps,
        T_max=steps - decay_begin,
    ),
]
train_cfg = dict(_delete_=True, type='mmpola.ExactIterLoop', max_iters=steps, val_interval=1000)
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=500, max_keep_ckpts=1),
    average=dict(
        type='EMAHook', ema_type='ExponentialMovingAverage', momentum=1e-3, update_buffers=True
    ),
)
