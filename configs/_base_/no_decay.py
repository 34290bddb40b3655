"""The parameters without weight decay: norms, biases, position tables, layer scales, and attention's own parameters.

Weight decay would pull learned exponents towards the middle of their range. The names are those of
`mmpola.backbones.parameter_groups.NO_WEIGHT_DECAY`.
"""

no_decay = dict(
    norm_decay_mult=0.0,
    bias_decay_mult=0.0,
    custom_keys={  # substrings of parameter names
        'attn.feature_map': dict(decay_mult=0.0),
        'positional_encoding': dict(decay_mult=0.0),
        'pos_embed': dict(decay_mult=0.0),
        'relative_position_bias_table': dict(decay_mult=0.0),
        'gamma_1': dict(decay_mult=0.0),
        'gamma_2': dict(decay_mult=0.0),
    },
)
"""A value of `optim_wrapper.paramwise_cfg`."""
