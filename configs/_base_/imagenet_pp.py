"""ImageNet-1k as the authors train PolaFormer++, with a moving average of the weights.

The average is evaluated and saved. Source: cfgs/pola_b*.yaml, config.py and pretrain.sh of the authors' repository. The average forgets
1.8e-4 of itself at every step, whatever the batch. It covers about 5,600 steps, so it is still
close to the random weights in a run of a few thousand steps: use a larger momentum there, such as
`--cfg-options default_hooks.average.momentum=0.01`.
"""

_base_ = ['./imagenet.py']

train_dataloader = dict(batch_size=256)
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(eta_min_ratio=2e-4)
default_hooks = dict(
    average=dict(
        type='EMAHook',
        ema_type='ExponentialMovingAverage',
        momentum=1.8e-4,  # the authors' decay is 0.99982
        update_buffers=True,
    ),
)
