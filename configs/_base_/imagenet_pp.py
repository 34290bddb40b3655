"""ImageNet-1k as published for PolaFormer++: averaged weights, which are evaluated and saved.

The momentum belongs to steps of 1,024 images: multiply it by (processes x batch_size) / 1024 where they differ. The
average reaches over some 5,600 steps, so in a run of a few thousand it is still near the random weights: there too take
a larger one, `--cfg-options default_hooks.average.momentum=0.01`.
"""

_base_ = ['./imagenet.py']

default_hooks = dict(
    average=dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=1.8e-4, update_buffers=True),  # 0.99982
    buffers=dict(type='mmpola.MeanBuffersHook'),
)
