"""The paper's 1x schedule on COCO (appendix A.2): 12 epochs, AdamW 1e-4, weight decay 1e-4, 16 images per step.

No decay on norms, biases, position tables, and the powers and scales of attention: fine-tuning should not pull learned
exponents towards the middle of their range. Common practice for Swin decays by 0.05; the paper says 1e-4.
"""

_base_ = ['mmdet::_base_/default_runtime.py']

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={  # substrings of parameter names
            'positional_encoding': dict(decay_mult=0.0),
            'pos_embed': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'attn.power': dict(decay_mult=0.0),
            'attn.scale': dict(decay_mult=0.0),
        },
    ),
)

# `--auto-scale-lr` scales the learning rate when GPUs times images per GPU is not 8 x 2.
auto_scale_lr = dict(enable=False, base_batch_size=16)

default_hooks = dict(checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto'))
