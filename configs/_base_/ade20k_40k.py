"""The paper's schedule on ADE20K (appendix A.2), 40,000 steps: AdamW 2e-4, weight decay 1e-3, 16 images per step.

Polynomial decay of power 0.9 after 1,500 warm-up steps. These are the paper's values; UperNet configs elsewhere mostly
use a learning rate of 6e-5 and a weight decay of 0.01.
"""

_base_ = ['./adamw.py', 'mmseg::_base_/default_runtime.py']

steps = 40000

train_cfg = dict(type='mmpola.ExactIterLoop', max_iters=steps, val_interval=steps // 10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=1500, end=steps),
]

optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-3))

auto_scale_lr = dict(enable=False, base_batch_size=16)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmpola.AtomicCheckpointHook', by_epoch=False, interval=steps // 10, max_keep_ckpts=3, save_best='mIoU'
    ),
    preemption=dict(type='mmpola.PreemptionHook'),
    finite_loss=dict(type='mmpola.FiniteLossHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
