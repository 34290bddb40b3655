"""AdamW without decay on norms, biases, position tables, layer scales, and attention's powers, scales and temperatures.

Weight decay would pull learned exponents towards the middle of their range. The names are those of
`mmpola.backbones.parameter_groups.NO_WEIGHT_DECAY`. The schedule files set the learning rate and the weight decay of
all other parameters.
"""

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999)),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={  # substrings of parameter names
            'attn.power': dict(decay_mult=0.0),
            'attn.scale': dict(decay_mult=0.0),
            'attn.s1': dict(decay_mult=0.0),
            'attn.s2': dict(decay_mult=0.0),
            'positional_encoding': dict(decay_mult=0.0),
            'pos_embed': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'gamma_1': dict(decay_mult=0.0),
            'gamma_2': dict(decay_mult=0.0),
        },
    ),
)
