"""The schedule of Semantic FPN on ADE20K: 40,000 steps of 32 images, AdamW 2e-4, decay 1e-3.

The paper (appendix A.2) prints the optimizer, both rates and the number of steps. The polynomial of
power 0.9 without warm-up and 8 GPUs x 4 images are PVT's (segmentation/configs/sem_fpn), whose
weight decay is 1e-4. PVT exempts no parameter from it; ours exempt norms, biases, position tables
and the powers and scales of attention, because decay would pull pretrained ones away from what they
learned.
"""

_base_ = ['./adamw.py', './hooks.py', 'mmseg::_base_/default_runtime.py']

steps = 40000

train_cfg = dict(type='mmpola.ExactIterLoop', max_iters=steps, val_interval=steps // 10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=steps),
]

optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-3))

# `--auto-scale-lr` scales the learning rate when GPUs times images per GPU is not 8 x 4.
auto_scale_lr = dict(enable=False, base_batch_size=32)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    **_base_.training_hooks,
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
default_hooks['checkpoint'].update(
    by_epoch=False, interval=steps // 10, max_keep_ckpts=3, save_best='mIoU'
)
