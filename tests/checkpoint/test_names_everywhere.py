"""Wherever a checkpoint is given, a URL, a file of the hub and a model's name do: backbones, MMEngine, the tools."""

import io

import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader
from safetensors.torch import save_file

from mmpola.backbones import PolaSwin
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import RELEASED
from mmpola.checkpoint.safe_load import read_checkpoint, register_mmengine_reader
from mmpola.engine.checkpoint import check_pretrained, read
from mmpola.messages import UsageError

ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}
NAMES = ['{url}/pola_swin_t.pth', f'hf://{RELEASED}/pola_swin_t.pth', 'mmpola://pola_swin_tiny']


@pytest.fixture
def released(hub):
    """A small backbone whose weights are the hub's pola_swin_t.pth."""
    model, file = PolaSwin(ARCH), io.BytesIO()
    torch.save({'model': model.state_dict()}, file)
    hub.files['pola_swin_t.pth'] = file.getvalue()
    return model


def same(one, other):
    return all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())


@pytest.mark.parametrize('name', NAMES)
def test_a_backbone_starts_from_a_name(name, hub, released):
    model = PolaSwin(ARCH, init_cfg={'type': 'Pretrained', 'checkpoint': name.format(url=hub.url)})
    assert not same(model, released)
    model.init_weights()
    assert same(model, released)


@pytest.mark.parametrize('name', NAMES)
def test_mmengine_loads_a_name(name, hub, released):
    register_mmengine_reader()
    loaded = CheckpointLoader.load_checkpoint(name.format(url=hub.url), map_location='cpu')
    assert loaded['model'].keys() == released.state_dict().keys()


@pytest.mark.parametrize('name', NAMES)
def test_the_tools_read_a_name(name, hub):
    file = io.BytesIO()
    torch.save({'state_dict': {'a': torch.ones(1)}}, file)
    hub.files['pola_swin_t.pth'] = file.getvalue()
    assert list(read(name.format(url=hub.url)).weights) == ['a']
    with pytest.raises(UsageError, match='cannot be downloaded'):
        read(f'{hub.url}/none.pth')


@pytest.mark.parametrize('name', NAMES)
def test_a_training_downloads_its_weights_before_the_model_is_built(name, hub):
    name = name.format(url=hub.url)
    cfg = Config({'model': {'backbone': {'init_cfg': {'type': 'Pretrained', 'checkpoint': name}}}})
    check_pretrained(cfg)
    assert any(hub.file_of(path) == 'pola_swin_t.pth' for path in hub.gets)
    cfg.model.backbone.init_cfg.checkpoint = f'{hub.url}/none.pth'
    with pytest.raises(UsageError) as raised:
        check_pretrained(cfg)
    assert str(raised.value).startswith(f'{hub.url}/none.pth: cannot be downloaded (')
    assert str(raised.value).endswith(
        '(model.backbone.init_cfg.checkpoint); train without it with --cfg-options model.backbone.init_cfg=None'
    )
    cfg.model.backbone.init_cfg = [{'type': 'Normal'}, cfg.model.backbone.init_cfg]  # as MMEngine's modules take it
    with pytest.raises(UsageError, match=r'none\.pth: cannot be downloaded'):
        check_pretrained(cfg)


def test_names_of_mmengine_are_left_to_mmengine():
    cfg = Config({'model': {'backbone': {'init_cfg': {'type': 'Pretrained', 'checkpoint': 'torchvision://resnet50'}}}})
    check_pretrained(cfg)


def test_safetensors_files(tmp_path):
    model, path = PolaSwin(ARCH), tmp_path / 'weights.safetensors'
    save_file(model.state_dict(), path)
    loaded = PolaSwin(ARCH, init_cfg={'type': 'Pretrained', 'checkpoint': str(path)})
    loaded.init_weights()
    assert same(loaded, model)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match='not a checkpoint, or truncated'):
        read_checkpoint(path)
