"""Mistakes in a config, each refused with one line before data and weights are read."""

import copy

import pytest
from mmengine.config import Config

from mmpola.engine.validate import validate_config
from mmpola.messages import UsageError
from tests.helpers.small_configs import TINY

MASK_RCNN = [
    (
        {'model.backbone.arch': 'atto'},
        "model.backbone.arch: expected one of ['tiny', 'small', 'base'] or a dict, got 'atto'",
    ),
    (
        {'model.backbone.drop_path_rat': 0.1},
        'model.backbone: expected arguments of mmpola.PolaSwin, got drop_path_rat',
    ),
    ({'model.backbone.drop_path_rate': 1.5}, 'model.backbone.drop_path_rate: expected a number in [0, 1), got 1.5'),
    (
        {'model.backbone.type': 'PolaSwn'},
        'model.backbone.type: expected a name in the mmdet::model registry, got PolaSwn',
    ),
    (
        {'model.roi_head.bbox_head.num_clases': 3},
        'model.roi_head.bbox_head: expected arguments of ConvFCBBoxHead, got num_clases',
    ),
    (
        {'model.neck.num_outs': 2},
        'model.neck: cannot be built: AssertionError: assert num_outs >= self.num_ins - start_level',
    ),
    (
        {'model.neck.in_channels': [8, 16, 32, 255]},
        'model.neck.in_channels: expected the channels of model.backbone, [8, 16, 32, 64], got [8, 16, 32, 255]',
    ),
    (
        {'model.backbone.out_indices': (0, 1, 2)},
        'model.neck.in_channels: expected the channels of model.backbone, [8, 16, 32], got [8, 16, 32, 64]',
    ),
    ({'model.rpn_head.in_channels': 5}, 'model.rpn_head.in_channels: expected the channels of model.neck, 16, got 5'),
    ({'default_scope': 'mmdte'}, 'default_scope: expected an installed package, such as mmdet, got mmdte'),
    (
        {'train_dataloader.dataset.pipeline.1.with_msk': True},
        'train_dataloader.dataset.pipeline.1: expected arguments of LoadAnnotations, got with_msk',
    ),
    (
        {'default_hooks.checkpoint.intervall': 5},  # a hook that takes any keyword
        'default_hooks.checkpoint: expected arguments of mmpola.AtomicCheckpointHook, got intervall',
    ),
    ({'default_hooks.preemption.interval': 0}, 'default_hooks.preemption.interval: expected a positive integer, got 0'),
    (
        {'default_hooks.logger.type': 'LogerHook'},
        'default_hooks.logger.type: expected a name in the hook registry, got LogerHook',
    ),
    (
        {'optim_wrapper.optimizer.weight_decy': 0.1},
        'optim_wrapper.optimizer: expected arguments of AdamW, got weight_decy',
    ),
    ({'param_scheduler.0.start_facto': 0.1}, 'param_scheduler.0: expected arguments of LinearLR, got start_facto'),
    ({'train_cfg.max_epoch': 3}, 'train_cfg: expected arguments of mmpola.ExactEpochLoop, got max_epoch'),
    ({'val_evaluator.metrik': 'box'}, 'val_evaluator: expected arguments of CocoMetric, got metrik'),
    ({'randomness.sed': 1}, 'randomness: expected seed, diff_rank_seed, deterministic, got sed'),
]


@pytest.fixture(scope='module')
def detector(root, shapes, tmp_path_factory):
    """The tiny detector's config, read once; tests must not change it."""
    path = tmp_path_factory.mktemp('config') / 'tiny.py'
    path.write_text(TINY.format(base=str(root / 'configs' / 'mask_rcnn_pola_swin_shapes.py'), data=f'{shapes}/coco/'))
    return Config.fromfile(path)


def refusal(cfg):
    with pytest.raises(UsageError) as raised:
        validate_config(cfg)
    return str(raised.value)


@pytest.mark.parametrize(
    ('changes', 'message'), MASK_RCNN, ids=lambda value: next(iter(value)) if isinstance(value, dict) else ''
)
def test_of_a_detector(detector, changes, message):
    cfg = copy.deepcopy(detector)
    cfg.merge_from_dict(changes)
    before = cfg.to_dict()
    assert refusal(cfg) == message
    assert cfg.to_dict() == before


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [
        (
            'in_channels',
            [8, 16, 24, 7],
            'in_channels: expected the channels of model.neck, [16, 16, 16, 16], got [8, 16, 24, 7]',
        ),
        ('in_index', [0, 1, 2, 4], 'in_index: expected indices below 4, got [0, 1, 2, 4]'),
    ],
)
def test_of_a_segmenter(tiny_segmentation, key, value, message):
    cfg = Config.fromfile(tiny_segmentation)
    cfg.model.decode_head[key] = value
    assert refusal(cfg) == f'model.decode_head.{message}'


def test_of_a_classifier(root):
    cfg = Config.fromfile(root / 'configs' / 'imagenet_pola_swin_t.py')
    cfg.val_evaluator.topk = (1, 1001)
    assert refusal(cfg) == 'val_evaluator.topk: expected at most model.num_classes, 1000, got (1, 1001)'
    cfg.model.backbone.drop_rate = -0.1
    assert refusal(cfg) == 'model.backbone.drop_rate: expected a number in [0, 1), got -0.1'


def test_a_misspelt_key_that_the_file_uses_is_a_variable(tiny_config):
    with open(tiny_config, 'a') as file:
        file.write('\ncustom_hook = dict(type="EMAHook")\ncustom_hooks = [custom_hook]\n')
    validate_config(Config.fromfile(tiny_config))
    with open(tiny_config, 'a') as file:
        file.write('\noptim_wraper = dict(accumulative_counts=2)\n')
    assert refusal(Config.fromfile(tiny_config)) == (
        'optim_wraper: expected a key that training reads, such as optim_wrapper, got optim_wraper'
    )


@pytest.mark.parametrize('config', ['mask_rcnn_pola_swin_t_1x', 'upernet_pola_swin_t_160k'])
def test_published_configs_have_none(root, config):
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    validate_config(cfg)


@pytest.mark.parametrize('key', ['visualizer', 'optim_wrapper', 'log_processor', 'model.backbone'])
def test_arguments_have_names(detector, key):
    cfg = copy.deepcopy(detector)
    part = cfg
    for name in key.split('.'):
        part = part[name]
    part[7] = 8
    assert refusal(cfg) == f'{key}: expected names of arguments, got 7'


@pytest.mark.parametrize('name', ['batchsize', 5])
def test_of_a_loader(detector, name):
    cfg = copy.deepcopy(detector)
    cfg.train_dataloader[name] = 4
    message = refusal(cfg)
    assert message.startswith('train_dataloader: expected dataset, batch_size, ')
    assert message.endswith(f', got {name}')
