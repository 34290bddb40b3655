"""ImageNet-1k as published for Pola-PVT: 5 epochs of warm-up, down to 1e-5 per 1,024 images."""

_base_ = ['./imagenet.py']

epochs = 300
warmup = 5

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
