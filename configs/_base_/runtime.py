"""Runtime of classifiers: hooks, logs, environment; the checkpoint with the best accuracy is kept.

All random numbers are functions of the seed, so a resumed run sees the same samples and random
numbers as an uninterrupted one.
"""

_base_ = ['./hooks.py']

default_scope = 'mmengine'

default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    **_base_.training_hooks,
    class_count=dict(type='mmpola.ClassCountHook'),
)
default_hooks['checkpoint'].update(save_best='accuracy/top1', rule='greater')
visualizer = dict(
    type='Visualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')],
)
env_cfg = dict(
    cudnn_benchmark=True, mp_cfg=dict(mp_start_method='fork'), dist_cfg=dict(backend='nccl')
)
randomness = dict(seed=0)
log_level = 'INFO'
load_from = None
resume = False
