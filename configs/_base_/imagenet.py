"""The papers' recipe on ImageNet-1k: 300 epochs from random weights, AdamW 1e-3 per 1,024 images, 20 epochs of warm-up.

The learning rate is scaled with the batch (auto_scale_lr). All random numbers are functions of the seed, so a resumed
run sees the same samples and random numbers as an uninterrupted one.

As in the published recipe, only norms, biases and other vectors are exempt from weight decay. The configs for detection
and segmentation (`no_decay.py`) also exempt position tables and the powers, scales and temperatures of attention.
"""

default_scope = 'mmengine'
data_root = 'data/imagenet/'
image_size = 224
epochs = 300
warmup = 20

model = dict(
    type='mmpola.ImageClassifier',
    num_classes=1000,
    data_preprocessor=dict(
        type='mmpola.ClassificationPreprocessor',
        mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5),
        label_smoothing=0.1,
        channels_last=False,
    ),
)

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='mmpola.ClassFolders',
        root=data_root + 'train',  # or train.tar
        training=True,
        transform=dict(
            input_size=image_size,
            interpolation='bicubic',
            auto_augment='rand-m9-mstd0.5-inc1',
            color_jitter=0.4,  # timm ignores it when RandAugment is on
            re_prob=0.25,
            re_mode='pixel',
        ),
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmpola.ClassFolders',
        root=data_root + 'val',
        classes=data_root + 'train',
        training=False,
        transform=dict(input_size=image_size, interpolation='bicubic', crop_pct=0.875),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='mmpola.Accuracy', topk=(1, 5))
test_evaluator = val_evaluator

train_cfg = dict(type='mmpola.ExactEpochLoop', max_epochs=epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
auto_scale_lr = dict(enable=True, base_batch_size=1024)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=warmup, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=warmup,
        end=epochs,
        T_max=epochs - warmup,
        convert_to_iter_based=True,
    ),
]

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(
        type='mmpola.AtomicCheckpointHook', interval=1, max_keep_ckpts=3, save_best='accuracy/top1', rule='greater'
    ),
    preemption=dict(type='mmpola.PreemptionHook'),
    throughput=dict(type='mmpola.ThroughputHook'),
    batch_size=dict(type='mmpola.BatchSizeHook'),
    class_count=dict(type='mmpola.ClassCountHook'),
    unreadable_images=dict(type='mmpola.UnreadableImagesHook'),
)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')])
env_cfg = dict(cudnn_benchmark=True, mp_cfg=dict(mp_start_method='fork'), dist_cfg=dict(backend='nccl'))
randomness = dict(seed=0)
log_level = 'INFO'
load_from = None
resume = False
