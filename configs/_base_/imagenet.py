"""The papers' recipe on ImageNet-1k: 300 epochs from random weights, AdamW 1e-3 per 1,024 images, 20 epochs of warm-up.

RandAugment, mixup and CutMix, random erasing, label smoothing. The learning rate is scaled with the batch
(auto_scale_lr).

As in the published recipe, only norms, biases and other vectors are exempt from weight decay. The configs for detection
and segmentation (`mmpola.NoDecayOptimizerConstructor`) also exempt position tables and the powers, scales and
temperatures of attention.
"""

_base_ = ['./classification.py']

epochs = 300
warmup = 20

model = dict(
    data_preprocessor=dict(mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5)),
)
train_dataloader = dict(
    dataset=dict(
        transform=dict(
            auto_augment='rand-m9-mstd0.5-inc1',
            color_jitter=0.4,  # timm ignores it when RandAugment is on
            re_prob=0.25,
            re_mode='pixel',
        ),
    ),
)

train_cfg = dict(max_epochs=epochs)
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
