"""Every config builds, says how it is run, and steps the weights it means to step."""

import ast

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from mmpola.backbones import PolaSwin


def leaf_configs(root):
    return sorted((root / 'configs').glob('*.py'))


def pytest_generate_tests(metafunc):
    if 'config' in metafunc.fixturenames:
        paths = leaf_configs(metafunc.config.rootpath)
        metafunc.parametrize('config', paths, ids=[path.stem for path in paths])


def test_builds(config):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    assert isinstance(model.backbone, PolaSwin)


def test_docstring_tells_how_to_run_and_what_to_expect(config):
    text = ast.get_docstring(ast.parse(config.read_text()))
    assert f'python tools/train.py configs/{config.name}' in text
    assert 'xpected' in text


def test_no_decay_on_norms_biases_tables_powers_and_scales(config):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decayed = {id(p) for group in wrapper.optimizer.param_groups if group['weight_decay'] for p in group['params']}
    exempt = ('norm', '.bias', 'positional_encoding', 'relative_position_bias_table', 'attn.power', 'attn.scale')
    for name, parameter in model.named_parameters():
        if name.startswith('backbone.'):
            assert (id(parameter) in decayed) != any(word in name for word in exempt), name


def test_mask_rcnn_swin_t_is_the_papers_recipe(root):
    cfg = Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py')
    assert cfg.model.backbone.drop_path_rate == 0.2
    assert (cfg.optim_wrapper.optimizer.type, cfg.optim_wrapper.optimizer.lr) == ('AdamW', 1e-4)
    assert cfg.optim_wrapper.optimizer.weight_decay == 1e-4
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].milestones) == (12, [8, 11])
    assert (cfg.train_dataloader.batch_size, cfg.auto_scale_lr.base_batch_size) == (2, 16)


def test_every_parameter_of_the_detector_gets_a_gradient(root, shapes):
    """One training step on generated images: DistributedDataParallel would find nothing unused."""
    from mmengine.runner import Runner

    cfg = Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_shapes.py')
    init_default_scope(cfg.default_scope)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.data_root = f'{shapes}/coco/'
    loader = Runner.build_dataloader(cfg.train_dataloader, seed=0)
    model = MODELS.build(cfg.model)
    data = model.data_preprocessor(next(iter(loader)), training=True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert torch.isfinite(loss)
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.slow
@pytest.mark.real_data
def test_a_training_step_on_real_coco_images(root, real_data):
    """The real Pola-Swin-T config on coco_mini at a short side of 160: finite losses, gradients everywhere."""
    from mmengine.runner import Runner

    cfg = Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py')
    init_default_scope(cfg.default_scope)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.data_root = f'{real_data}/coco_mini/'
    cfg.train_dataloader.dataset.pipeline[2].scale = (266, 160)
    loader = Runner.build_dataloader(cfg.train_dataloader, seed=0)
    model = MODELS.build(cfg.model)
    data = model.data_preprocessor(next(iter(loader)), training=True)
    loss, parts = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert all(torch.isfinite(value) for value in parts.values())
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
