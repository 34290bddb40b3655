"""`init_cfg` of backbones and classifiers: files, MMEngine's initializers, and lists of both."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.init_cfg import check_init_cfg
from mmpola.layers import PolaAttention

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


def gates_of(model):
    """Return weight and bias of each gate in a Pola-Swin."""
    gates = []
    for layer in layers_of(model, PolaAttention):
        gates.append((layer.qkvg.weight[-layer.dim :], layer.qkvg.bias[-layer.dim :]))
    return gates


@pytest.mark.parametrize('place', ['detector', 'backbone'])
def test_initializers_leave_an_open_gate_open(place, root):
    """A detector runs its initializers on all layers before its backbone's `init_weights`."""
    cfg = Config.fromfile(root / 'configs' / 'faster_rcnn_pola_swin_small.py')
    init_default_scope(cfg.default_scope)
    xavier = {'type': 'Xavier', 'layer': 'Linear', 'bias': 0.5}
    cfg.model.backbone.update(gate_init='open', init_cfg=None)
    node = cfg.model if place == 'detector' else cfg.model.backbone
    node.init_cfg = xavier
    model = MODELS.build(cfg.model)
    model.init_weights()
    assert (model.backbone.stages[0].blocks[0].attn.proj.bias == 0.5).all()
    gates = gates_of(model.backbone)
    assert gates
    for weight, bias in gates:
        assert not weight.any()
        assert (bias == 1).all()


def test_a_file_wins_over_an_open_gate(weights):
    pretrained, expected = weights
    model = PolaSwin(ARCH, gate_init='open', init_cfg=[pretrained, LINEAR])
    model.init_weights()
    assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


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
