"""The paper's 160,000-step schedule on ADE20K; all other settings are those of the 40,000-step schedule."""

_base_ = ['./ade20k_40k.py']

steps = 160000

train_cfg = dict(max_iters=steps, val_interval=steps // 10)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=1500, end=steps),
]
default_hooks = dict(checkpoint=dict(interval=steps // 10))
