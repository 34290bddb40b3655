"""Backbones and heads equal the authors' models on their files: features, logits and gradients of
every parameter.
"""

import pytest
import torch
from mmengine.registry import MODELS

from mmpola.openmmlab.start.fit import read_checkpoint_for

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

ERRORS = {
    'pola_pvt': (1e-6, 1e-12, 1e-6),
    'pola_swin': (1e-5, 1e-5, 1e-5),
    'polaformer_pp': (1e-6, 1e-6, 1e-5),
}
"""Family -> largest relative errors of features, logits and gradients in float64; some records are
float32.
"""


def settings_of(name, record, **arguments):
    """Translate the authors' constructor arguments into the config of an ImageClassifier."""
    config = record['config']
    shared = {'attn_types': ATTN_TYPES[name], 'drop_path_rate': 0.0}
    if record['kind'] == 'pola_swin':
        arch = {
            'embed_dims': config['embed_dim'],
            'depths': config['depths'],
            'num_heads': config['num_heads'],
        }
        backbone = {
            'type': 'mmpola.PolaSwin',
            'arch': arch,
            'alpha': config['alpha'],
            'mlp_ratio': config['mlp_ratio'],
        }
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
            arch |= {
                'layer_scale': config['layerscales'],
                'layer_scale_init': config['layer_init_values'],
            }
            backbone = {'type': 'mmpola.PolaFormerPP'}
    return {
        'type': 'mmpola.ImageClassifier',
        'backbone': {**backbone, 'arch': arch, **shared},
        'num_classes': config['num_classes'],
        'projection': config.get('projection'),
        **arguments,
    }


def relative_error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize('name', ATTN_TYPES)
def test_the_authors_features_logits_and_gradients(name, golden, tmp_path):
    """By `init_cfg`, and with the weights that the scripts read for this config."""
    record, path = golden(name), tmp_path / 'authors.pth'
    torch.save(record['checkpoint'], path)
    settings = settings_of(name, record, init_cfg={'type': 'Pretrained', 'checkpoint': str(path)})
    model = MODELS.build(settings)
    model.init_weights()
    loaded, renamed = model.state_dict(), model.rename_weights(record['checkpoint']['model'])
    assert all(
        torch.equal(x, renamed[key]) for key, x in loaded.items()
    )  # also the statistics of BatchNorm
    torch.testing.assert_close(
        read_checkpoint_for(path, model).weights,
        dict(loaded),
        rtol=0,
        atol=0,
    )

    model, (of_features, of_logits, of_gradients) = model.double().eval(), ERRORS[record['kind']]
    image = record['image_u8'].double() / 64 - 2
    for (tokens, grid), expected in zip(
        model.backbone.stage_maps(image), record['features'], strict=True
    ):
        assert relative_error(tokens.mT.unflatten(2, grid), expected) < of_features
    logits = model(image, mode='tensor')
    assert relative_error(logits, record['logits']) < of_logits
    logits.square().sum().backward()
    parameters = dict(model.named_parameters())
    for key, expected in model.rename_weights(record['grads']).items():
        assert relative_error(parameters[key].grad, expected) < of_gradients, key
