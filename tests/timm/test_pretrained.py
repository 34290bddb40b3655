"""Weights in timm: released ones by name, files of every origin, other heads and channels."""

import copy
import sys
from types import ModuleType, SimpleNamespace

import pytest
import timm
import torch
from timm.models import adapt_input_conv, save_for_hf
from torch.testing import assert_close

import mmpola.timm  # noqa: F401  # registers the models
from mmpola.backbones.weight_names import to_released
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import MODELS_WITH_WEIGHTS
from mmpola.layers import position_tables
from mmpola.pretraining.image_classifier import ImageClassifier
from tests.helpers.hub_server import Hub, serve
from tests.helpers.models import SMALL, SWIN, images


class CfgNode(dict):
    """Stands in for a config of yacs."""

    def __init__(self, *nested):
        super().__init__(SIZE=224, NESTED=nested)
        self.__dict__['__immutable__'] = True


@pytest.mark.parametrize('with_config', [False, True])
def test_checkpoint_path_takes_the_authors_files(golden, tmp_path, with_config, monkeypatch):
    """The released files hold a yacs config next to the weights; yacs need not be installed."""
    record = golden('pola_swin_llss')
    config = record['config']
    path = tmp_path / 'authors.pth'
    with monkeypatch.context() as patch:
        patch.setattr(CfgNode, '__module__', 'yacs.config')
        patch.setitem(sys.modules, 'yacs', ModuleType('yacs'))
        patch.setitem(sys.modules, 'yacs.config', SimpleNamespace(CfgNode=CfgNode))
        content = dict(record['checkpoint'])
        if with_config:
            content['config'] = CfgNode(CfgNode())
        torch.save(content, path)
    model = timm.create_model(
        'pola_swin_tiny',
        num_classes=10,
        checkpoint_path=str(path),
        arch={
            'embed_dims': config['embed_dim'],
            'depths': config['depths'],
            'num_heads': config['num_heads'],
        },
        mlp_ratio=config['mlp_ratio'],
    )
    with torch.no_grad():
        logits = model.double().eval()(record['image_u8'].double() / 64 - 2)
    assert ((logits - record['logits']).norm() / record['logits'].norm()).item() < 1e-5


def test_checkpoints_move_between_timm_and_mmengine(tmp_path):
    backbone = {'type': 'mmpola.PolaSwin', 'arch': SWIN['arch'], 'pretrain_img_size': 64}
    trained = ImageClassifier(backbone, num_classes=5).eval()
    path = tmp_path / 'epoch_1.pth'
    torch.save({'state_dict': trained.state_dict()}, path)
    model = timm.create_model(
        'pola_swin_tiny', num_classes=5, checkpoint_path=str(path), **SWIN
    ).eval()
    x = images(1, 3, 64, 64)
    assert_close(model(x), trained(x), rtol=0, atol=0)
    torch.save(model.state_dict(), path)
    back = ImageClassifier(
        backbone, num_classes=5, init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}
    ).eval()
    back.init_weights()
    assert_close(back(x), trained(x), rtol=0, atol=0)

    larger = timm.create_model(
        'pola_swin_tiny', num_classes=5, checkpoint_path=str(path), **{**SWIN, 'img_size': 96}
    )
    assert larger.backbone.stages[0].blocks[0].attn.positional_encoding.shape == (1, 24 * 24, 16)
    with pytest.raises(CheckpointError, match='num_classes is 7, the file has 5'):
        timm.create_model('pola_swin_tiny', num_classes=7, checkpoint_path=str(path), **SWIN)


@pytest.mark.parametrize(
    'prefix', ['module._orig_mod.', '_orig_mod.module.', 'backbone._orig_mod.']
)
def test_names_of_wrappers_are_left_out(prefix, tmp_path):
    model = timm.create_model('pola_swin_tiny', num_classes=5, **SWIN)
    weights = {}
    for name, x in model.state_dict().items():
        inner = name.removeprefix('backbone.') if prefix.startswith('backbone.') else name
        weights[f'{prefix}{inner}' if name.startswith('backbone.') else name] = x
    torch.save(weights, tmp_path / 'wrapped.pth')
    other = timm.create_model(
        'pola_swin_tiny', num_classes=5, checkpoint_path=str(tmp_path / 'wrapped.pth'), **SWIN
    )
    for name, x in other.state_dict().items():
        assert_close(x, model.state_dict()[name], rtol=0, atol=0)


def test_tables_without_a_grid_are_read_as_square_and_said_to_be(tmp_path, capsys):
    """timm drops the grids of the file of `checkpoint_path`; 4 x 16 tokens look like 8 x 8."""
    wide = {**SWIN, 'img_size': (16, 64)}
    path = tmp_path / 'wide.pth'
    torch.save(timm.create_model('pola_swin_tiny', num_classes=5, **wide).state_dict(), path)
    larger = {**SWIN, 'num_classes': 5}
    capsys.readouterr()
    timm.create_model('pola_swin_tiny', checkpoint_path=str(path), **larger)
    said = capsys.readouterr()
    assert 'are read as square' in said.out + said.err
    timm.create_model(
        'pola_swin_tiny',
        pretrained=True,
        pretrained_cfg_overlay={'file': str(path)},
        **larger,
    )
    said = capsys.readouterr()
    assert '(4 x 16 -> 16 x 16 tokens)' in said.out + said.err


def test_partial_state_dicts_load_if_not_strict():
    model = timm.create_model('pola_swin_tiny', num_classes=5, **SWIN)
    other = copy.deepcopy(model)
    other.head.bias.data.fill_(3)
    keys = model.load_state_dict({'head.bias': other.head.bias.data}, strict=False)
    assert 'head.weight' in keys.missing_keys
    assert_close(model.head.bias, other.head.bias)


def saved(model, path):
    """Write a model's weights as the authors do: under 'model', without the prefix 'backbone.'."""
    weights = {key.removeprefix('backbone.'): x for key, x in model.state_dict().items()}
    weights = to_released(weights, model.backbone.released_names)
    torch.save({'model': weights, 'config': 'text'}, path)
    return model


def differing(model, other):
    """Names of the tensors of `model` that `other` lacks or has with other values."""
    tensors = other.state_dict()
    return {
        key
        for key, x in model.state_dict().items()
        if key not in tensors or not torch.equal(x, tensors[key].to(x))
    }


@pytest.fixture
def logged(monkeypatch):
    """The messages logged while loading."""
    messages = []
    monkeypatch.setattr('mmpola.checkpoint.load.info', messages.append)
    return messages


@pytest.mark.parametrize('name', ['pola_pvt_tiny', 'pola_swin_tiny', 'polaformer_pp_b0'])
def test_released_weights_by_name(name, tmp_path, monkeypatch, logged):
    """A file in checkpoints/ stands for the download, which tests/checkpoint/test_hub.py covers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'checkpoints').mkdir()
    released = saved(timm.create_model(name, **SMALL[name]), f'checkpoints/{name}.pth')
    assert differing(timm.create_model(name, pretrained=True, **SMALL[name]), released) == set()
    features = timm.create_model(
        name, pretrained=True, features_only=True, out_indices=(0, 1), **SMALL[name]
    )
    assert differing(features, released) == set()
    for message in logged:
        assert message.startswith(f'mmpola://{name} (checkpoints/{name}.pth): loaded ')


@pytest.mark.parametrize('name', ['pola_pvt_v2_b0', 'pola_deit_tiny', 'polaformer_pp_b0'])
def test_models_without_published_weights(name, tmp_path, monkeypatch):
    """The authors publish those of PolaFormer++ where no program can download them."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f'^mmpola://{name}: expected the file checkpoints/'):
        timm.create_model(name, pretrained=True, **SMALL[name])
    path = tmp_path / 'checkpoints' / f'{name}.pth'
    path.parent.mkdir()
    own = saved(timm.create_model(name, **SMALL[name]), path)
    for overlay in ({}, {'file': str(path)}):
        model = timm.create_model(name, True, pretrained_cfg_overlay=overlay, **SMALL[name])
        assert differing(model, own) == set()


def test_timm_lists_the_models_whose_weights_anybody_can_have():
    listed = {name.partition('.')[0] for name in timm.list_models('pola*', pretrained=True)}
    assert listed == set(MODELS_WITH_WEIGHTS)


@pytest.mark.parametrize('name', SMALL)
def test_other_classes_and_channels(name, tmp_path, logged):
    channels = 4
    path = str(tmp_path / 'trained.pth')
    trained = saved(timm.create_model(name, num_classes=9, **SMALL[name]), path)
    arguments = {'num_classes': 5, 'in_chans': channels, **SMALL[name]}
    model = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay={'file': path}, **arguments
    )
    first_conv = model.default_cfg['first_conv']
    assert differing(model, trained) == {f'{first_conv}.weight', 'head.weight', 'head.bias'}
    weight = trained.get_parameter(f'{first_conv}.weight')
    assert_close(model.get_parameter(f'{first_conv}.weight'), adapt_input_conv(channels, weight))
    loaded, head, stem, new = logged[0].split('; ')
    assert loaded.startswith(f'{path}: loaded ')
    assert head == 'the head is new, the file has 9 classes and the model 5'
    assert stem == f'{first_conv} converted from 3 to {channels} input channels'
    assert new == 'new: head.weight, head.bias'
    assert model.eval()(images(2, channels, 64, 64)).shape == (2, 5)

    features = timm.create_model(
        name,
        pretrained=True,
        pretrained_cfg_overlay={'file': path},
        features_only=True,
        in_chans=channels,
        **SMALL[name],
    )
    assert differing(features, model) == set()
    without_head = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay={'file': path}, num_classes=0, **SMALL[name]
    )
    assert differing(without_head, trained) == set()


@pytest.mark.parametrize('channels', [1, 3, 30])
@pytest.mark.parametrize('name', ['pola_swin_tiny', 'polaformer_pp_b0'])
def test_from_thirteen_channels(name, channels, tmp_path, logged):
    """Bands of a satellite; equal bands give equal sums."""
    path = str(tmp_path / 'trained.pth')
    trained = saved(timm.create_model(name, in_chans=13, **SMALL[name]), path)
    arguments = {'pretrained': True, 'pretrained_cfg_overlay': {'file': path}, **SMALL[name]}
    model = timm.create_model(name, in_chans=channels, **arguments)
    first_conv = f'{model.default_cfg["first_conv"]}.weight'
    assert differing(model, trained) == {first_conv}
    assert f'from 13 to {channels}' in logged[0]
    given = trained.get_parameter(first_conv)
    found = model.get_parameter(first_conv)
    if channels == 1:
        expected = given.sum(dim=1, keepdim=True)
    else:
        bands = [band % 13 for band in range(channels)]
        expected = given[:, bands] * 13 / channels
    assert_close(found, expected)
    assert differing(timm.create_model(name, in_chans=13, **arguments), trained) == set()


@pytest.mark.parametrize('source', ['local-dir', 'hub'])
def test_files_of_every_source_are_read_without_running_them(source, tmp_path, monkeypatch):
    """Also by timm 1.0.21, whose functions unpickle if they are not told otherwise."""
    read = []

    def load(*arguments, weights_only=False, **others):
        read.append(weights_only)
        return timm.create_model('pola_swin_tiny', **SWIN).state_dict()

    function = {'local-dir': 'load_state_dict_from_path', 'hub': 'load_state_dict_from_hf'}[source]
    monkeypatch.setattr(f'mmpola.timm.pretrained.{function}', load)
    overlay = {'hf_hub_id': 'somebody/swin'}
    if source == 'local-dir':
        overlay = {'source': 'local-dir', 'file': str(tmp_path)}
    timm.create_model('pola_swin_tiny', True, pretrained_cfg_overlay=overlay, **SWIN)
    assert read == [True]


def test_a_file_that_does_not_fit_loads_nothing(tmp_path):
    path = tmp_path / 'trained.pth'
    saved(timm.create_model('pola_swin_tiny', num_classes=9, **SWIN), path)
    deeper = {'arch': {**SWIN['arch'], 'depths': (1, 1, 2, 1)}, 'img_size': 64}
    with pytest.raises(CheckpointError, match=r'missing: backbone\.stages\.2\.blocks\.1'):
        timm.create_model(
            'pola_swin_tiny',
            pretrained=True,
            pretrained_cfg_overlay={'file': str(path)},
            num_classes=5,
            **deeper,
        )
    with pytest.raises(CheckpointError) as raised:
        timm.create_model('pola_swin_tiny', checkpoint_path=str(path), num_classes=9, **deeper)
    assert 'pretrained_cfg_overlay' not in str(raised.value)


@pytest.fixture
def hub(tmp_path):
    """A hub with a classifier of 9 classes as timm saves it; the caches are empty folders."""
    saved(timm.create_model('pola_swin_tiny', num_classes=9, **SWIN), tmp_path / 'content.pth')
    content = (tmp_path / 'content.pth').read_bytes()
    with serve(
        Hub('somebody/swin', {'pytorch_model.bin': content, 'epoch_7.pth': content}), tmp_path
    ) as hub:
        yield hub


@pytest.mark.parametrize(
    'overlay',
    [
        {'hf_hub_id': 'somebody/swin'},
        {'hf_hub_id': 'somebody/swin', 'hf_hub_filename': 'epoch_7.pth'},
        {'file': 'hf://somebody/swin/epoch_7.pth'},
        {'url': '{hub}/epoch_7.pth'},
        {'file': '{hub}/epoch_7.pth'},
    ],
)
def test_every_source_of_an_overlay(hub, overlay, tmp_path):
    overlay = {key: value.format(hub=hub.url) for key, value in overlay.items()}
    model = timm.create_model(
        'pola_swin_tiny', True, pretrained_cfg_overlay=overlay, num_classes=9, **SWIN
    )
    weights = torch.load(tmp_path / 'content.pth', weights_only=True)['model']
    assert_close(model.head.weight.data, weights['head.weight'], rtol=0, atol=0)
    assert hub.gets


@pytest.mark.parametrize('safe', [True, False])
@pytest.mark.parametrize('name', SMALL)
def test_saved_for_the_hub_and_loaded_from_its_folder(name, safe, tmp_path):
    model = timm.create_model(name, num_classes=5, in_chans=1, **SMALL[name]).eval()
    model.set_input_size((64, 96))
    save_for_hf(model, tmp_path, safe_serialization=safe)
    again = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
    x = images(1, 1, 64, 96)
    assert_close(again(x), model(x), rtol=0, atol=0)
    assert position_tables(again) == position_tables(model)
    assert (again.in_chans, again.num_classes) == (1, 5)

    renewed = timm.create_model(f'local-dir:{tmp_path}', pretrained=True, num_classes=3).eval()
    assert differing(renewed, model) == {'head.weight', 'head.bias'}
    features = timm.create_model(f'local-dir:{tmp_path}', pretrained=True, features_only=True)
    assert differing(features, model) == set()


@pytest.mark.parametrize('safe', [True, False])
def test_a_saved_folder_keeps_the_grid_of_its_tables(safe, tmp_path):
    """Also for a model of another image size with as many tokens."""
    model = timm.create_model('pola_swin_tiny', num_classes=5, **{**SWIN, 'img_size': (32, 128)})
    with torch.no_grad():
        for key in position_tables(model):
            model.get_parameter(key).normal_()
    save_for_hf(model, tmp_path, safe_serialization=safe)
    square = timm.create_model(f'local-dir:{tmp_path}', pretrained=True, img_size=64)
    model.set_input_size(64)
    assert differing(square, model) == set()
