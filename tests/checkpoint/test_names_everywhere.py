"""Backbones and the tools take a URL, a file of the hub or a model's name."""

import io

import pytest
import torch
from mmengine.config import Config

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.hub import RELEASED_REPOSITORY
from mmpola.openmmlab.config.named_files import check_pretrained
from mmpola.openmmlab.start.fit import read_training_checkpoint
from tests.helpers.refusals import refusal

ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}


@pytest.fixture
def released(hub):
    """A small backbone whose weights are the hub's pola_swin_t.pth."""
    model = PolaSwin(ARCH)
    file = io.BytesIO()
    torch.save({'model': model.state_dict()}, file)
    hub.files['pola_swin_t.pth'] = file.getvalue()
    return model


def pretrained(name):
    """A config whose backbone starts from a checkpoint."""
    return Config({'model': {'backbone': {'init_cfg': {'type': 'Pretrained', 'checkpoint': name}}}})


def same(one, other):
    return all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())


@pytest.mark.parametrize(
    'name',
    [
        '{url}/pola_swin_t.pth',
        f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth',
        'mmpola://pola_swin_tiny',
    ],
)
def test_backbones_and_the_tools_read_a_name(name, hub, released):
    name = name.format(url=hub.url)
    check_pretrained(pretrained(name).model)  # before the model is built
    assert any(hub.file_of(path) == 'pola_swin_t.pth' for path in hub.gets)

    model = PolaSwin(ARCH, init_cfg={'type': 'Pretrained', 'checkpoint': name})
    assert not same(model, released)
    model.init_weights()
    assert same(model, released)

    assert read_training_checkpoint(name).weights.keys() == released.state_dict().keys()


def test_check_data_downloads_nothing(hub, released):
    name = f'{hub.url}/pola_swin_t.pth'
    (line,) = check_pretrained(pretrained(name).model, download=False)
    assert line.startswith(f'model.backbone.init_cfg.checkpoint: {name}: not downloaded yet')
    for other in ('mmpola://pola_swin_tiny', 'hf://OWNER/NAME/file.pth'):
        assert 'not downloaded yet' in check_pretrained(pretrained(other).model, download=False)[0]
    assert not hub.gets
    check_pretrained(pretrained(name).model)
    assert not check_pretrained(pretrained(name).model, download=False)
    message = refusal(check_pretrained, pretrained('none.pth').model, download=False)
    assert message.startswith('none.pth: no such checkpoint file')


def test_what_cannot_be_downloaded_is_named_with_its_key(hub):
    name = f'{hub.url}/none.pth'
    cfg = pretrained(name)
    message = refusal(check_pretrained, cfg.model)
    assert message.startswith(f'{name}: cannot be downloaded (')
    assert '(model.backbone.init_cfg.checkpoint)' in message
    assert message.endswith('--cfg-options model.backbone.init_cfg=None')
    # MMEngine's modules also take a list.
    cfg.model.backbone.init_cfg = [{'type': 'Normal'}, cfg.model.backbone.init_cfg]
    assert refusal(check_pretrained, cfg.model).startswith(f'{name}: cannot be downloaded (')


def test_names_of_mmengine_are_left_to_mmengine():
    check_pretrained(pretrained('torchvision://resnet50').model)
