"""PolaFormer++'s schedule on ADE20K: 160,000 steps, AdamW 6e-5, weight decay 0.01.

Source: downstream/segmentation/configs/PolaPP of the authors' repository; it is SegFormer's
schedule, evaluated every 8,000 steps. The head learns with ten times the rate. Parameters with
`norm` in their name have no weight decay; biases and the temperatures of attention have it. The
config sets the batch.
"""

_base_ = ['./ade20k_160k.py']

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys={
            'pos_block': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
            'head': dict(lr_mult=10.0),
        }
    ),
)

train_cfg = dict(val_interval=8000)
default_hooks = dict(checkpoint=dict(interval=8000))
