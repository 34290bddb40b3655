"""Small models of every family for timm: 1 + 1 + 1 + 1 blocks, position tables of images of 64 x 64."""

import torch

SWIN = {
    'arch': {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)},
    'img_size': 64,
}
PYRAMID = {
    'embed_dims': (8, 16, 24, 32),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 2, 3, 4),
    'mlp_ratios': (2,) * 4,
}
PLUS = {
    'arch': {**PYRAMID, 'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4},
    'projection': 16,
}
SMALL = {
    'pola_pvt_tiny': {
        'arch': PYRAMID,
        'img_size': 64,
        'pola_sr_ratios': (2, 2, 1, 1),
        'attn_types': 'LLLS',
    },
    'pola_pvt_v2_b0': {'arch': PYRAMID, 'img_size': 64},
    'pola_swin_tiny': SWIN,
    'pola_deit_tiny': {'arch': {'embed_dims': 16, 'depth': 4, 'num_heads': 2}, 'img_size': 64},
    'polaformer_pp_b0': PLUS,
}


def images(*shape):
    """Images of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))
