"""The 1x schedule on COCO: 12 epochs, AdamW 1e-4, weight decay 1e-4, 16 images per step.

The paper (appendix A.2) prints the optimizer, both rates and the 12 epochs. The warm-up of 500
steps, the steps after 8 and 11 epochs and 8 GPUs x 2 images are those of mmdet, of Swin's and PVT's
detectors and of PolaFormer++'s schedule_1x.py.

Swin's detectors have a weight decay of 0.05; 1e-4 is the paper's value. They exempt norms and
tables of position biases from it, PVT's exempt nothing. Ours also exempt biases, position tables
and the powers and scales of attention, because decay would pull pretrained ones away from what they
learned.
"""

_base_ = ['./adamw.py', './hooks.py', 'mmdet::_base_/default_runtime.py']

train_cfg = dict(type='mmpola.ExactEpochLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]

optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4))

# `--auto-scale-lr` scales the learning rate when GPUs times images per GPU is not 8 x 2.
auto_scale_lr = dict(enable=False, base_batch_size=16)

default_hooks = _base_.training_hooks
default_hooks.checkpoint.update(interval=1, max_keep_ckpts=3, save_best='auto')
