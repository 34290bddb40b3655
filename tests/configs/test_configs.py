"""Every config builds and states its command."""

import ast
import re
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmpola.backbones.base import Backbone
from mmpola.checkpoint.hub import SHIPPED_MODELS, short_name
from mmpola.openmmlab.run.advice import length_advice
from mmpola.papers.lra.encoder import SequenceEncoder
from tools.dev.config_rows import read_counts, rounded

NORMS = (nn.LayerNorm, nn.BatchNorm2d)


COUNTS = read_counts()


def pytest_generate_tests(metafunc):
    if 'config' in metafunc.fixturenames:
        paths = sorted((metafunc.config.rootpath / 'configs').glob('*.py'))
        metafunc.parametrize('config', paths, ids=[path.stem for path in paths])


def test_builds_and_states_its_command(config):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert length_advice(cfg) == []
    assert {'checkpoint', 'preemption', 'finite_loss'} <= cfg.default_hooks.keys()
    assert cfg.custom_imports.imports == ['mmpola']
    assert isinstance(model.backbone, (Backbone, SequenceEncoder))
    text = ast.get_docstring(ast.parse(config.read_text()))
    script = r'(python tools/train\.py|bash tools/dist_train\.sh)'
    assert re.search(rf'^    {script} configs/{config.name}', text, re.MULTILINE)
    if cfg.model.backbone.get('init_cfg'):
        name = cfg.model.backbone.init_cfg.checkpoint
        model_name = name.removeprefix('mmpola://')
        if model_name in SHIPPED_MODELS:
            assert 'weights that come with mmpola' in ' '.join(text.split())
        else:
            weights = name if model_name == name else f'checkpoints/{short_name(model_name)}.pth'
            assert weights in text
            assert Path(weights).stem in config.stem
    if not config.stem.startswith('lra_') or config.stem == 'lra_listops_small':
        parameters = sum(p.numel() for p in model.parameters())
        assert rounded(parameters / 1e6) == COUNTS[config.stem].parameters
    if reader := next(
        (cfg.model[name] for name in ('neck', 'decode_head', 'panoptic_head') if name in cfg.model),
        None,
    ):
        assert list(reader.in_channels) == [
            model.backbone.embed_dims[i] for i in model.backbone.out_indices
        ]
    recipes_of_others = (
        'imagenet',
        'lra',
        'mask_rcnn_polaformer',
        'cascade_mask_rcnn_polaformer',
        'retinanet_polaformer',
    )
    if not config.stem.startswith((*recipes_of_others, 'ham', 'segformer')):
        assert_no_decay_on_norms_biases_tables_powers_and_scales(model, cfg)


def assert_no_decay_on_norms_biases_tables_powers_and_scales(model, cfg):
    """Configs with other rules, which are the authors', are compared with them in
    test_recipes.py.
    """
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decayed = {
        id(p)
        for group in wrapper.optimizer.param_groups
        if group['weight_decay']
        for p in group['params']
    }
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    tables = ('positional_encoding', 'pos_embed', 'relative_position_bias_table')
    exempt = ('.bias', *tables, 'attn.feature_map', 'gamma_1', 'gamma_2')
    for name, parameter in model.backbone.named_parameters():
        free = id(parameter) in norms or any(word in name for word in exempt)
        assert (id(parameter) in decayed) != free, name


def test_no_image_is_evaluated_with_padding_for_a_larger_one(config):
    """Attention and GroupNorm read padding, and prediction reads one image at a time."""
    cfg = Config.fromfile(config)
    is_classifier = cfg.default_scope == 'mmengine'  # whose images are cropped to one size
    for split in ('val', 'test'):
        loader = cfg[f'{split}_dataloader']
        if loader.batch_size > 1:
            assert is_classifier or any('size' in step for step in loader.dataset.pipeline)
