"""ImageNet-1k from random weights, with the authors' defaults: 300 epochs, 20 of warm-up.

Source: config.py and main.py of the authors' repository. AdamW has 5e-4 per 512 images; the
learning rate is scaled with the batch (auto_scale_lr). It follows a cosine whose beginning the
warm-up replaces. Gradients are clipped to a norm of 5. Images are augmented by RandAugment, mixup,
CutMix and random erasing; labels are smoothed.

Vectors, biases and Swin's tables of position biases have no weight decay. The authors decay all
other parameters, also position tables and the powers, scales and temperatures of attention, which
our configs for detection and segmentation exempt (`mmpola.NoDecayOptimizerConstructor`).

The paper (appendix A.2) says 400 epochs with 20 of warm-up; the authors' files say 300.
"""

_base_ = ['./classification.py']

epochs = 300
warmup = 20

model = dict(
    data_preprocessor=dict(
        mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5)
    ),
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
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys={'relative_position_bias_table': dict(decay_mult=0.0)},
    ),
    clip_grad=dict(max_norm=5.0),
)
auto_scale_lr = dict(enable=True, base_batch_size=512)
param_scheduler = [
    dict(
        type='mmpola.WarmupCosineLR',
        warmup=warmup,
        T_max=epochs,
        end=epochs,
        start_factor=1e-3,
        eta_min_ratio=1e-2,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
