"""PolaFormer++'s schedule on ADE20K (the authors' settings): AdamW 6e-5, decay 0.01, head at 10x, poly 1.0."""

_base_ = ['./ade20k_160k.py']

optim_wrapper = dict(
    optimizer=dict(lr=6e-5, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys={'head': dict(lr_mult=10.0)}),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000),
]
