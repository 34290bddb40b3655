"""`init_cfg` of backbones and classifiers: files, MMEngine's initializers, and lists of both."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.init_cfg import check_init_cfg, remove_pretrained

ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}
LINEAR = {'type': 'Constant', 'layer': 'Linear', 'val': 0.25, 'bias': 0.5}
NORM = {'type': 'Constant', 'layer': 'LayerNorm', 'val': 2.0, 'bias': 3.0}


@pytest.fixture
def weights(tmp_path):
    """A file with the weights of a backbone, and these."""
    torch.manual_seed(7)
    model = PolaSwin(ARCH)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    return {'type': 'Pretrained', 'checkpoint': str(tmp_path / 'weights.pth')}, model.state_dict()


def layers_of(model, cls):
    return [module for module in model.modules() if isinstance(module, cls)]


@pytest.mark.parametrize('init_cfg', [LINEAR, [LINEAR, NORM]])
def test_initializers_of_mmengine(init_cfg):
    model = PolaSwin(ARCH, init_cfg=init_cfg)
    model.init_weights()
    assert all((layer.weight == 0.25).all() for layer in layers_of(model, torch.nn.Linear))
    expected = 2.0 if isinstance(init_cfg, list) else 1.0
    assert all((layer.weight == expected).all() for layer in layers_of(model, torch.nn.LayerNorm))


@pytest.mark.parametrize('before', [[], [LINEAR]])
def test_a_file_wins_over_initializers_wherever_it_stands(before, weights):
    pretrained, expected = weights
    model = PolaSwin(ARCH, init_cfg=[pretrained, *before])
    model.init_weights()
    assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


def test_initializers_of_a_classifier_leave_the_file_to_its_backbone(weights):
    pretrained, expected = weights
    backbone = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'init_cfg': [pretrained]}
    model = MODELS.build(
        {
            'type': 'mmpola.ImageClassifier',
            'backbone': backbone,
            'num_classes': 3,
            'init_cfg': [LINEAR],
        }
    )
    model.init_weights()
    assert (model.head.weight == 0.25).all()
    assert torch.equal(model.backbone.stem.proj.weight, expected['stem.proj.weight'])


@pytest.mark.parametrize('kind', ['model', 'ema'])
def test_the_weights_of_a_file_that_has_plain_and_averaged_ones_are_chosen(kind, weights):
    pretrained, expected = weights
    other = {name: x + 1 for name, x in expected.items()}
    content = {'model': other, 'state_dict_ema': other}
    content[{'model': 'model', 'ema': 'state_dict_ema'}[kind]] = expected
    torch.save(content, pretrained['checkpoint'])
    model = PolaSwin(ARCH, init_cfg={**pretrained, 'weights': kind})
    model.init_weights()
    assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    'wrong',
    [
        'weights.pth',
        ['weights.pth'],
        {'checkpoint': 'weights.pth'},
        {'type': 'Pretrained', 'checkpoint': 'weights.pth', 'prefix': 'backbone.'},
        {'type': 'Pretrained', 'checkpoint': 'weights.pth', 'weights': 'average'},
        {'type': 'Pretrained'},
    ],
)
def test_other_values_are_refused(wrong):
    entry = wrong if isinstance(wrong, (str, list)) else [LINEAR, wrong]
    with pytest.raises(ValueError, match=r'^init_cfg: expected ') as refused:
        check_init_cfg(entry)
    given = wrong[0] if isinstance(wrong, list) else wrong
    assert f'got {given!r}' in str(refused.value)


def test_pretrained_weights_are_removed_everywhere():
    pretrained = {'type': 'Pretrained', 'checkpoint': 'none.pth'}
    random = {'type': 'Normal', 'std': 0.01}
    heads = [{'conv': {'init_cfg': [dict(pretrained)]}}, {'init_cfg': random}]
    cfg = Config({'model': {'init_cfg': dict(pretrained), 'heads': heads}})
    remove_pretrained(cfg.model)
    assert cfg.model.to_dict() == {
        'init_cfg': None,
        'heads': [{'conv': {'init_cfg': None}}, {'init_cfg': random}],
    }
