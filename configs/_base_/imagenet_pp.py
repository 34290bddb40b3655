"""ImageNet-1k as published for PolaFormer++: a moving average of the weights is evaluated and saved.

The momentum is meant for batches of 1,024 images; for other batches multiply it by (processes x batch_size) / 1024. The
average covers some 5,600 steps. In a run of a few thousand steps it is therefore still close to the random weights: use
a larger momentum there, such as `--cfg-options default_hooks.average.momentum=0.01`.
"""

_base_ = ['./imagenet.py']

default_hooks = dict(
    average=dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=1.8e-4, update_buffers=True),  # 0.99982
    buffers=dict(type='mmpola.MeanBuffersHook'),
)
