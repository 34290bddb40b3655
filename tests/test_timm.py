"""The models in timm: every name, timm's keyword arguments, and the same files of weights as through MMEngine."""

import copy
import pickle
import subprocess
import sys
import textwrap

import pytest
import timm
import timm.data
import torch
from torch.testing import assert_close

import mmpola.timm
from mmpola.checkpoint import CheckpointError
from mmpola.classification import ImageClassifier

SWIN = {'arch': {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)}, 'img_size': 64}
PLUS = {'embed_dims': (8, 16, 24, 32), 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 3, 4), 'mlp_ratios': (2,) * 4}
PLUS = {'arch': {**PLUS, 'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4}, 'projection': 16}


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('name', mmpola.timm.NAMED)
def test_every_model_is_registered(name):
    assert timm.is_model(name)
    entry_point = getattr(mmpola.timm, name)
    assert entry_point.__name__ == name
    assert pickle.loads(pickle.dumps(entry_point)) is entry_point is timm.models.model_entrypoint(name)
    with torch.device('meta'):
        model = timm.create_model(name, num_classes=7)
    assert model.num_classes == 7
    assert model.get_classifier().weight.shape[:2] == (7, model.num_features)
    side = 384 if name.endswith('384') else 224
    config = timm.data.resolve_model_data_config(model)
    assert config['input_size'] == (3, side, side)
    assert (config['interpolation'], config['crop_pct']) == ('bicubic', 0.875)
    assert model.default_cfg == model.pretrained_cfg


def test_the_models_are_those_of_the_papers():
    assert {
        'pola_pvt_tiny',
        'pola_pvt_v2_b0',
        'pola_swin_base_384',
        'pola_deit_tiny',
        'polaformer_pp_b5',
    } <= set(timm.list_models('pola*'))
    with torch.device('meta'):
        model = timm.create_model('pola_swin_base_384')
    assert sum(x.numel() for x in model.parameters()) == 91_599_304


def test_takes_the_keyword_arguments_of_timm():
    model = timm.create_model('pola_swin_tiny', num_classes=10, in_chans=1, drop_path_rate=0.4, **SWIN).eval()
    assert model(images(2, 1, 48, 80)).shape == (2, 10)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == 'DropPath']
    assert max(rates) == pytest.approx(0.4)
    assert model.backbone.layers[0].blocks[0].attn.grid == (16, 16)


@pytest.mark.parametrize(('name', 'small'), [('pola_swin_tiny', SWIN), ('polaformer_pp_b0', PLUS)])
def test_the_head_can_be_removed_and_replaced(name, small):
    model, x = timm.create_model(name, num_classes=10, **small).double().eval(), images(2, 3, 64, 64).double()
    features = model.forward_features(x)
    assert features.shape == (2, model.backbone.embed_dims[-1], 2, 2)
    assert_close(model.forward_head(features), model(x))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    model.reset_classifier(4)
    assert model.num_classes == 4
    assert model(x).shape == (2, 4)  # the new head has the dtype of the backbone
    model.reset_classifier(0)
    assert_close(model(x), pooled)
    assert_close(timm.create_model(name, num_classes=0, **small).double()(x).shape, pooled.shape)


@pytest.mark.parametrize('name', ['pola_pvt_tiny', 'pola_swin_tiny', 'pola_pvt_v2_b0', 'polaformer_pp_b0'])
def test_features_only_returns_a_list_of_maps(name):
    model = timm.create_model(name, features_only=True, out_indices=(1, 2))
    maps = model(images(1, 3, 64, 96))
    assert isinstance(maps, list)
    assert model.feature_info.reduction() == [8, 16]
    for x, channels, size in zip(maps, model.feature_info.channels(), [(8, 12), (4, 6)], strict=True):
        assert x.shape == (1, channels, *size)
    sum(x.square().sum() for x in maps).backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


def test_features_only_of_a_model_with_one_stride():
    model = timm.create_model('pola_deit_tiny', features_only=True, out_indices=(1,))
    assert [tuple(x.shape) for x in model(images(1, 3, 32, 48))] == [(1, 192, 2, 3)]
    assert model.feature_info.reduction() == [16]


def test_the_head_reads_the_last_of_the_features(tmp_path):
    model = timm.create_model('pola_swin_tiny', **SWIN).eval()
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    features = timm.create_model(
        'pola_swin_tiny', features_only=True, checkpoint_path=str(tmp_path / 'weights.pth'), **SWIN
    ).eval()
    x = images(1, 3, 64, 64)
    assert_close(features(x)[-1], model.forward_features(x), rtol=0, atol=0)
    assert len(features(x)) == 4


SAVE_WITH_YACS = """
import sys, types, torch
yacs, config = types.ModuleType('yacs'), types.ModuleType('yacs.config')
class CfgNode(dict):
    def __init__(self, *nested):
        super().__init__(SIZE=224, NESTED=nested)
        self.__dict__['__immutable__'] = True
CfgNode.__module__ = 'yacs.config'
config.CfgNode = CfgNode
sys.modules.update({'yacs': yacs, 'yacs.config': config})
torch.save({'model': torch.load(sys.argv[1], weights_only=True)['model'], 'config': CfgNode(CfgNode())}, sys.argv[2])
"""


@pytest.mark.parametrize('with_config', [False, True])
def test_checkpoint_path_takes_the_authors_files(golden, tmp_path, with_config):
    """The released files hold a yacs config next to the weights; yacs need not be installed."""
    record = golden('pola_swin_llss')
    config, path = record['config'], tmp_path / 'authors.pth'
    torch.save(record['checkpoint'], path)
    if with_config:
        subprocess.run([sys.executable, '-c', SAVE_WITH_YACS, path, path], check=True)
    model = timm.create_model(
        'pola_swin_tiny',
        num_classes=10,
        checkpoint_path=str(path),
        arch={'embed_dims': config['embed_dim'], 'depths': config['depths'], 'num_heads': config['num_heads']},
        mlp_ratio=config['mlp_ratio'],
    )
    with torch.no_grad():
        logits = model.double().eval()(record['image_u8'].double() / 64 - 2)
    assert ((logits - record['logits']).norm() / record['logits'].norm()).item() < 1e-5


def test_checkpoints_move_between_timm_and_mmengine(tmp_path):
    backbone = {'type': 'mmpola.PolaSwin', 'arch': SWIN['arch'], 'pretrain_img_size': 64}
    trained, path = ImageClassifier(backbone, num_classes=5).eval(), tmp_path / 'epoch_1.pth'
    torch.save({'state_dict': trained.state_dict()}, path)
    model = timm.create_model('pola_swin_tiny', num_classes=5, checkpoint_path=str(path), **SWIN).eval()
    x = images(1, 3, 64, 64)
    assert_close(model(x), trained(x), rtol=0, atol=0)
    torch.save(model.state_dict(), path)
    back = ImageClassifier(backbone, num_classes=5, init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}).eval()
    back.init_weights()
    assert_close(back(x), trained(x), rtol=0, atol=0)

    larger = timm.create_model('pola_swin_tiny', num_classes=5, checkpoint_path=str(path), **{**SWIN, 'img_size': 96})
    assert larger.backbone.layers[0].blocks[0].attn.positional_encoding.shape == (1, 24 * 24, 16)
    with pytest.raises(CheckpointError, match='num_classes is 7, the file has 5'):
        timm.create_model('pola_swin_tiny', num_classes=7, checkpoint_path=str(path), **SWIN)


def test_partial_state_dicts_load_if_not_strict():
    model = timm.create_model('pola_swin_tiny', num_classes=5, **SWIN)
    other = copy.deepcopy(model)
    other.head.bias.data.fill_(3)
    keys = model.load_state_dict({'head.bias': other.head.bias.data}, strict=False)
    assert 'head.weight' in keys.missing_keys
    assert_close(model.head.bias, other.head.bias)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            {'pretrained': True},
            'pretrained: nothing is downloaded, pass checkpoint_path=PATH; the released weights are in the Hugging '
            'Face repository ZachMeng/PolaFormer (none of pola_pvt_v2 and pola_deit)',
        ),
        ({'global_pool': 'max'}, "global_pool: expected None or 'avg', got 'max'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError) as raised:
        timm.create_model('pola_swin_tiny', **arguments)
    assert str(raised.value) == message


def test_works_without_openmmlab_and_triton(root):
    code = """
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split('.')[0] in {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'triton'}:
                raise ModuleNotFoundError(f'{name} is blocked', name=name)
    sys.meta_path.insert(0, Block())
    import timm, torch, mmpola.timm
    arch = dict(embed_dims=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8))
    print(tuple(timm.create_model('pola_swin_tiny', arch=arch, num_classes=3)(torch.zeros(1, 3, 32, 32)).shape))
    """
    found = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)], capture_output=True, text=True, cwd=root, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == '(1, 3)\n'
