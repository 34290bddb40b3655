auto_scale_lr = dict(base_batch_size=4, enable=True)
data_root = 'data/imagenet/'
default_hooks = dict(
    buffers=dict(type='mmpola.engine.hooks.mean_buffers.MeanBuffersHook'),
    checkpoint=dict(
        interval=1,
        max_keep_ckpts=3,
        rule='greater',
        save_best='accuracy/top1',
        type='mmpola.engine.hooks.atomic_checkpoint.AtomicCheckpointHook',
    ),
    class_count=dict(type='mmpola.classification.hooks.ClassCountHook'),
    finite_loss=dict(type='mmpola.engine.hooks.finite.FiniteLossHook'),
    logger=dict(interval=50, type='mmengine.hooks.logger_hook.LoggerHook'),
    preemption=dict(type='mmpola.engine.hooks.preemption.PreemptionHook'),
)
default_scope = 'mmpola'
env_cfg = dict(
    cudnn_benchmark=True, dist_cfg=dict(backend='nccl'), mp_cfg=dict(mp_start_method='fork')
)
epochs = 300
image_size = 224
launcher = 'none'
load_from = None
log_level = 'WARNING'
model = dict(
    backbone=dict(
        arch=dict(
            depths=(
                1,
                1,
                1,
                1,
            ),
            embed_dims=4,
            num_heads=(
                1,
                1,
                1,
                1,
            ),
        ),
        drop_path_rate=0.2,
        pretrain_img_size=32,
        type='mmpola.backbones.pola_swin.PolaSwin',
    ),
    data_preprocessor=dict(
        channels_last=False,
        label_smoothing=0.1,
        mixup=dict(cutmix_alpha=1.0, mixup_alpha=0.8, prob=1.0, switch_prob=0.5),
        type='mmpola.classification.preprocessor.ClassificationPreprocessor',
    ),
    num_classes=3,
    type='mmpola.classification.image_classifier.ImageClassifier',
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=5.0),
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ),
        eps=1e-08,
        lr=0.0005,
        type='torch.optim.adamw.AdamW',
        weight_decay=0.05,
    ),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        custom_keys=dict(relative_position_bias_table=dict(decay_mult=0.0)),
        flat_decay_mult=0.0,
        norm_decay_mult=0.0,
    ),
    type='mmengine.optim.optimizer.optimizer_wrapper.OptimWrapper',
)
param_scheduler = [
    dict(
        T_max=2,
        by_epoch=True,
        convert_to_iter_based=True,
        end=2,
        eta_min_ratio=0.01,
        start_factor=0.001,
        type='mmpola.engine.schedules.WarmupCosineLR',
        warmup=1,
    ),
]
randomness = dict(seed=0)
resume = False
test_cfg = dict(type='mmengine.runner.loops.TestLoop')
test_dataloader = dict(
    batch_size=4,
    collate_fn=dict(type='mmengine.dataset.utils.default_collate'),
    dataset=dict(
        classes='colours/train',
        root='colours/val',
        training=False,
        transform=dict(crop_mode='squash', crop_pct=0.875, input_size=32, interpolation='bicubic'),
        type='mmpola.classification.class_folders.ClassFolders',
    ),
    num_workers=0,
    persistent_workers=False,
    pin_memory=False,
    sampler=dict(shuffle=False, type='mmengine.dataset.sampler.DefaultSampler'),
)
test_evaluator = dict(
    topk=(
        1,
        2,
    ),
    type='mmpola.classification.accuracy.Accuracy',
)
train_cfg = dict(max_epochs=2, type='mmpola.engine.loops.ExactEpochLoop', val_interval=1)
train_dataloader = dict(
    batch_size=4,
    collate_fn=dict(type='mmengine.dataset.utils.default_collate'),
    dataset=dict(
        root='colours/train',
        training=True,
        transform=dict(
            auto_augment='rand-m9-mstd0.5-inc1',
            color_jitter=0.4,
            input_size=32,
            interpolation='bicubic',
            re_mode='pixel',
            re_prob=0.25,
        ),
        type='mmpola.classification.class_folders.ClassFolders',
    ),
    drop_last=True,
    num_workers=0,
    persistent_workers=False,
    pin_memory=False,
    sampler=dict(shuffle=True, type='mmengine.dataset.sampler.DefaultSampler'),
)
training_hooks = dict(
    buffers=dict(type='mmpola.engine.hooks.mean_buffers.MeanBuffersHook'),
    checkpoint=dict(
        rule='greater',
        save_best='accuracy/top1',
        type='mmpola.engine.hooks.atomic_checkpoint.AtomicCheckpointHook',
    ),
    finite_loss=dict(type='mmpola.engine.hooks.finite.FiniteLossHook'),
    preemption=dict(type='mmpola.engine.hooks.preemption.PreemptionHook'),
)
val_cfg = dict(type='mmengine.runner.loops.ValLoop')
val_dataloader = dict(
    batch_size=4,
    collate_fn=dict(type='mmengine.dataset.utils.default_collate'),
    dataset=dict(
        classes='colours/train',
        root='colours/val',
        training=False,
        transform=dict(crop_mode='squash', crop_pct=0.875, input_size=32, interpolation='bicubic'),
        type='mmpola.classification.class_folders.ClassFolders',
    ),
    num_workers=0,
    persistent_workers=False,
    pin_memory=False,
    sampler=dict(shuffle=False, type='mmengine.dataset.sampler.DefaultSampler'),
)
val_evaluator = dict(
    topk=(
        1,
        2,
    ),
    type='mmpola.classification.accuracy.Accuracy',
)
visualizer = dict(
    type='mmengine.visualization.visualizer.Visualizer',
    vis_backends=[
        dict(type='mmengine.visualization.vis_backend.LocalVisBackend'),
    ],
)
warmup = 20
work_dir = 'work'
