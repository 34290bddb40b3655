"""The models of the authors' small files in tests/golden, as configs."""

ATTN_TYPES = {
    'pola_pvt_llll': 'LLLL',
    'pola_pvt_llss': 'LLSS',
    'pola_pvt_sr8421': 'LLLL',
    'pola_swin_llss': 'LLSS',
    'pola_swin_llll': 'LLLL',
    'pola_swin_mixed': ('L', 'L', 'LLS', 'S'),
    'polaformer_pp': 'LLSS',
    'polaformer_pp_rect': ('L', 'L', 'LS', 'L'),
}
"""File -> the types of attention that it was recorded with."""


def settings_of(name, record, **arguments):
    """Translate the authors' constructor arguments into the config of an ImageClassifier."""
    config = record['config']
    shared = {'attn_types': ATTN_TYPES[name], 'drop_path_rate': 0.0}
    if record['kind'] == 'pola_swin':
        arch = {'embed_dims': config['embed_dim'], 'depths': config['depths'], 'num_heads': config['num_heads']}
        backbone = {'type': 'mmpola.PolaSwin', 'arch': arch, 'alpha': config['alpha'], 'mlp_ratio': config['mlp_ratio']}
    else:
        arch = {key: config[key] for key in ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')}
        if record['kind'] == 'pola_pvt':
            backbone = {
                'type': 'mmpola.PolaPVT',
                'alpha': config['alpha'],
                'pola_sr_ratios': [int(digit) for digit in config['la_sr_ratios']],
                'softmax_sr_ratios': config['sr_ratios'],
                'pretrain_img_size': config['img_size'],
            }
        else:
            arch |= {'layer_scale': config['layerscales'], 'layer_scale_init': config['layer_init_values']}
            backbone = {'type': 'mmpola.PolaFormerPP'}
    return {
        'type': 'mmpola.ImageClassifier',
        'backbone': {**backbone, 'arch': arch, **shared},
        'num_classes': config['num_classes'],
        'projection': config.get('projection'),
        **arguments,
    }
