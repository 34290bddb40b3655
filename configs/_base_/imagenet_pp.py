"""ImageNet-1k as published for PolaFormer++: averaged weights, which are evaluated and saved."""

_base_ = ['./imagenet.py']

default_hooks = dict(
    average=dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=1.8e-4, update_buffers=True),  # 0.99982
)
