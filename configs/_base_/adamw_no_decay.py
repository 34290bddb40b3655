"""AdamW without decay on norms, biases, position tables, and the powers and scales of attention.

Weight decay would pull learned exponents towards the middle of their range. The schedule files set the learning rate
and the weight decay of all other parameters.
"""

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999)),
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
