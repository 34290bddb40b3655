"""The Python in README.md and docs/outside_openmmlab.md runs, and the README's config builds the promised network."""

import re

import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

import mmpola.timm  # noqa: F401
from mmpola.backbones import PolaSwin

BLOCK = re.compile(r'^```python\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def python_blocks(page):
    return [match['text'] for match in BLOCK.finditer(page.read_text())]


@pytest.fixture
def blocks(root):
    found = python_blocks(root / 'README.md')
    assert len(found) == 3
    return found


def test_the_config_is_a_mask_rcnn_on_pola_swin(blocks, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(blocks[0])
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert isinstance(model.backbone, PolaSwin)
    assert model.backbone.init_cfg['checkpoint'] == 'mmpola://pola_swin_tiny'
    assert sum(parameter.numel() for parameter in model.parameters()) == 48_791_944  # of mask_rcnn_pola_swin_t_1x
    assert isinstance(build_optim_wrapper(model, cfg.optim_wrapper).optimizer, torch.optim.AdamW)


def test_the_timm_models_run(blocks):
    names = {}
    exec(blocks[1], names)
    assert names['classifier'].num_classes == 10
    assert [tuple(x.shape[2:]) for x in names['maps']] == [(120, 160), (60, 80), (30, 40), (15, 20)]


def test_the_operator_runs(blocks):
    names = {}
    exec(blocks[2], names)
    assert names['o'].shape == names['q'].shape


@pytest.mark.slow
def test_the_page_outside_openmmlab_runs(root, tmp_path, monkeypatch):
    """Its checkpoints are written first, from random weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'checkpoints').mkdir()
    weights = timm.create_model('pola_swin_tiny', num_classes=10).state_dict()
    torch.save({'state_dict': weights}, 'checkpoints/pola_swin_t.pth')
    *timm_blocks, backbone_block, operator_block, export_block = python_blocks(root / 'docs' / 'outside_openmmlab.md')
    names = {}
    exec(''.join(timm_blocks), names)
    assert names['features'].shape == (2, 768, 7, 7)
    assert names['logits'].shape == (2, 10)
    assert [x.shape[1] for x in names['maps']] == [96, 768]
    assert len(names['optimizer'].param_groups) > 12  # of 12 blocks, the stem and the head
    exec(backbone_block + operator_block, names)
    assert [x.shape[1] for x in names['maps']] == [96, 192, 384, 768]
    assert names['y'].shape == (2, 196, 128)
    exec(export_block, names)
    assert names['computed'].shape == (1, 10)
    torch.testing.assert_close(torch.from_numpy(names['computed']), names['logits'])
