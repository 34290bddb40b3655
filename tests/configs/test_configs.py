"""Every config builds and says how it is run; one leaf per family trains and evaluates."""

import ast
from pathlib import Path

import model_table
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import nn

from mmpola.backbones.pyramid import Pyramid

NORMS = (nn.LayerNorm, nn.BatchNorm2d)


def leaf_configs(root):
    return sorted((root / 'configs').glob('*.py'))


def pytest_generate_tests(metafunc):
    if 'config' in metafunc.fixturenames:
        paths = leaf_configs(metafunc.config.rootpath)
        metafunc.parametrize('config', paths, ids=[path.stem for path in paths])


def build_on_meta(path):
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return cfg, MODELS.build(cfg.model)


def test_builds_and_says_how_it_is_run_and_what_to_expect(config):
    cfg, model = build_on_meta(config)
    assert isinstance(model.backbone, Pyramid)
    text = ast.get_docstring(ast.parse(config.read_text()))
    assert f'python tools/train.py configs/{config.name}' in text
    assert 'xpected' in text
    if 'shapes' not in config.stem:
        weights = cfg.model.backbone.init_cfg.checkpoint
        assert weights in text
        assert Path(weights).stem in config.stem


def test_no_decay_on_norms_biases_tables_powers_and_scales(config):
    cfg, model = build_on_meta(config)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decayed = {id(p) for group in wrapper.optimizer.param_groups if group['weight_decay'] for p in group['params']}
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    exempt = ('.bias', 'positional_encoding', 'pos_embed', 'relative_position_bias_table', 'attn.power', 'attn.scale')
    for name, parameter in model.backbone.named_parameters():
        free = id(parameter) in norms or any(word in name for word in exempt)
        assert (id(parameter) in decayed) != free, name


def test_mask_rcnn_swin_t_is_the_papers_recipe(root):
    cfg = Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py')
    assert cfg.model.backbone.drop_path_rate == 0.2
    assert (cfg.optim_wrapper.optimizer.type, cfg.optim_wrapper.optimizer.lr) == ('AdamW', 1e-4)
    assert cfg.optim_wrapper.optimizer.weight_decay == 1e-4
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].milestones) == (12, [8, 11])
    assert (cfg.train_dataloader.batch_size, cfg.auto_scale_lr.base_batch_size) == (2, 16)


WIDTHS = {'embed_dims': (8, 16, 24, 32), 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 3, 4), 'mlp_ratios': (2, 2, 2, 2)}
SMALL_ARCHS = {
    'mmpola.PolaSwin': {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)},
    'mmpola.PolaPVT': WIDTHS,
    'mmpola.PolaFormerPP': {**WIDTHS, 'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4},
}
ONE_PER_FAMILY = [
    'retinanet_pola_pvt_t_1x',
    'retinanet_polaformer_pp_b2_1x',
    'mask_rcnn_pola_pvt_t_1x',
    'mask_rcnn_pola_swin_t_3x',
    'cascade_mask_rcnn_pola_swin_t_1x',
    'semantic_fpn_pola_pvt_t_40k',
    'upernet_pola_swin_t_160k',
    'ham_polaformer_pp_b1_160k',
]


def set_classes(node, number):
    """Every num_classes inside a model's config."""
    for key, child in node.items():
        if key == 'num_classes':
            node[key] = number
        for inner in child if isinstance(child, list) else [child]:
            if isinstance(inner, dict):
                set_classes(inner, number)


def shrink(cfg, shapes, tmp_path):
    """The config with a tiny backbone, small images and one step, on generated data."""
    backbone = cfg.model.backbone
    backbone['arch'], backbone['init_cfg'] = SMALL_ARCHS[backbone.type], None
    dims = backbone.arch['embed_dims']
    channels = [dims * 2**i for i in range(4)] if isinstance(dims, int) else list(dims)
    channels = [channels[i] for i in backbone.get('out_indices', range(4))]
    (cfg.model.neck if 'neck' in cfg.model else cfg.model.decode_head)['in_channels'] = channels
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head['in_channels'] = channels[2]
    detection = cfg.default_scope == 'mmdet'
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset['data_root'] = f'{shapes}/coco/' if detection else f'{shapes}/ade'
        for transform in loader.dataset.pipeline:
            if transform.type in ('Resize', 'RandomResize'):
                transform['scale'] = (96, 80)
    if detection:
        set_classes(cfg.model, 6)
        metainfo = {'classes': ('circle', 'square', 'triangle', 'star', 'ring', 'cross')}
        for split in ('train', 'val', 'test'):
            cfg[f'{split}_dataloader'].dataset['metainfo'] = metainfo
        cfg.val_evaluator['ann_file'] = f'{shapes}/coco/annotations/instances_val2017.json'
        cfg.train_dataloader.dataset['indices'] = 2  # an epoch of one step
        cfg.train_cfg.update(max_epochs=1, val_interval=1)
        cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg)['score_thr'] = 0.0  # untrained scores count too
    else:
        cfg.train_cfg.update(max_iters=1, val_interval=1)
    cfg.work_dir, cfg.log_level = str(tmp_path / 'work'), 'ERROR'
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize('name', ONE_PER_FAMILY)
def test_one_leaf_per_family_trains_and_evaluates(name, root, shapes, tmp_path):
    """Every parameter gets a gradient, as DistributedDataParallel demands, and a step and an evaluation run."""
    cfg = shrink(Config.fromfile(root / 'configs' / f'{name}.py'), shapes, tmp_path)
    runner = Runner.from_cfg(cfg)
    model = runner.model.train()
    data = model.data_preprocessor(next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))), training=True)
    loss, parts = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    assert all(torch.isfinite(value) for value in parts.values())
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    before = {name: p.detach().clone() for name, p in model.backbone.named_parameters()}
    runner.train()
    assert any(not torch.equal(p, before[name]) for name, p in model.backbone.named_parameters())
    metric = 'coco/bbox_mAP' if cfg.default_scope == 'mmdet' else 'mIoU'
    assert metric in runner.val_loop.run()


@pytest.mark.slow
@pytest.mark.real_data
def test_a_training_step_on_real_coco_images(root, real_data):
    """The real Pola-Swin-T config on coco_mini at a short side of 160: finite losses, gradients everywhere."""
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


def test_the_readme_has_every_config(root):
    assert model_table.row(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py') == (
        '| [mask_rcnn_pola_swin_t_1x](configs/mask_rcnn_pola_swin_t_1x.py) | Mask R-CNN, Pola-Swin-T, COCO, '
        '1x (12 epochs) | 48.8 M | box AP / mask AP | 44.8 / 40.5 (paper, table 2) | not yet run |'
    )
    assert model_table.table() in (root / 'README.md').read_text(), 'run python tools/model_table.py'
