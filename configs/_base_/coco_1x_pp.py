"""The 1x schedule of PolaFormer++'s detectors with masks: AdamW 1e-4, weight decay 0.05.

Source: downstream/detection/configs/PolaPP of the authors' repository. Parameters with `norm` in
their name have no weight decay; biases and the temperatures of attention have it. The rest is the
1x schedule of the other models.
"""

_base_ = ['./coco_1x.py']

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={
            'norm': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'absolute_pos_embed': dict(decay_mult=0.0),
        }
    ),
)
