"""Mistakes in a config, each refused with one line before data and weights are read."""

import copy

import pytest
from mmengine.config import Config

from mmpola.engine.validate import EVALUATION_KEYS, EXPORT_KEYS, PREDICTION_KEYS, validate_config
from tests.helpers.configs import TINY
from tests.helpers.refusals import refusal

MISSPELT_ARGUMENTS = [
    ('model', 'backbon', 'arguments of MaskRCNN', 'backbone'),
    ('model.backbone', 'drop_path_rat', 'arguments of mmpola.PolaSwin', 'drop_path_rate'),
    ('model.roi_head.bbox_head', 'num_clases', 'arguments of ConvFCBBoxHead', 'num_classes'),
    (
        'train_dataloader.dataset.pipeline.1',
        'with_msk',
        'arguments of LoadAnnotations',
        'with_mask',
    ),
    ('optim_wrapper.optimizer', 'weight_decy', 'arguments of AdamW', 'weight_decay'),
    ('param_scheduler.0', 'start_facto', 'arguments of LinearLR', 'start_factor'),
    ('train_cfg', 'max_epoch', 'arguments of mmpola.ExactEpochLoop', 'max_epochs'),
    ('val_evaluator', 'metrik', 'arguments of CocoMetric', 'metric'),
    ('randomness', 'sed', 'seed, diff_rank_seed, deterministic', 'seed'),
]
"""Part of the config, an argument that it does not take, what it takes, the one that is meant."""

VALUES = [
    ('model.backbone.arch', 'atto', "one of ['tiny', 'small', 'base'] or a dict"),
    ('model.backbone.drop_path_rate', 1.5, 'a number in [0, 1)'),
    ('model.backbone.type', 'PolaSwn', 'a name in the mmdet::model registry'),
    ('model.neck.in_channels', [8, 16, 32, 255], 'the channels of model.backbone, [8, 16, 32, 64]'),
    ('model.rpn_head.in_channels', 5, 'the channels of model.neck, 16'),
    ('default_scope', 'mmdte', 'an installed package, such as mmdet'),
    ('default_hooks.logger.type', 'LogerHook', 'a name in the hook registry'),
    ('train_cfg.max_epochs', 'zwei', 'an integer from 1'),
    ('train_cfg.val_interval', 0, 'an integer from 1'),
    ('train_dataloader.batch_size', 2.5, 'an integer from 1'),
    ('train_dataloader.num_workers', -1, 'an integer from 0'),
    ('test_dataloader.batch_size', 0, 'an integer from 1'),
    ('optim_wrapper.accumulative_counts', 0, 'an integer from 1'),
    ('auto_scale_lr.base_batch_size', '16x', 'an integer from 1'),
    ('randomness.seed', -1, 'an integer from 0'),
    ('randomness.seed', 1.5, 'an integer from 0'),
    ('randomness.seed', 2**32, 'an integer up to 4294967295'),
    ('log_level', 'FOO', 'CRITICAL, ERROR, WARNING, INFO, DEBUG, NOTSET'),
    ('optim_wrapper.type', 'AmpOptimWraper', 'a name in the optim_wrapper registry'),
    ('visualizer.type', 'DetLocalVisualiser', 'a name in the visualizer registry'),
    (
        'visualizer.vis_backends.0.type',
        'TensorbordVisBackend',
        'a name in the vis_backend registry',
    ),
]
"""Key of the config, a value that it cannot have, the rule."""

UNSCOPED = """
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'
default_scope = 'mmdet'
custom_imports = dict(imports=['mmpola'])
model = dict(backbone=dict(_delete_=True, type='PolaSwin', arch='tiny'))
"""


@pytest.fixture(scope='module')
def detector(root, shapes, tmp_path_factory):
    """The tiny detector's config, read once; tests must not change it."""
    path = tmp_path_factory.mktemp('config') / 'tiny.py'
    path.write_text(
        TINY.format(
            base=str(root / 'configs' / 'mask_rcnn_pola_swin_shapes.py'), data=f'{shapes}/coco/'
        )
    )
    return Config.fromfile(path)


def refusal_of(cfg, **changes):
    """Return the message for a config with these changes, which checking leaves as it is."""
    cfg = copy.deepcopy(cfg)
    cfg.merge_from_dict(changes)
    before = cfg.to_dict()
    message = refusal(validate_config, cfg)
    assert cfg.to_dict() == before
    return message


@pytest.mark.parametrize(('part', 'argument', 'known', 'meant'), MISSPELT_ARGUMENTS)
def test_a_misspelt_argument(detector, part, argument, known, meant):
    message = refusal_of(detector, **{f'{part}.{argument}': 1})
    assert message == f'{part}: expected {known}, got {argument}; did you mean {meant}?'


@pytest.mark.parametrize(
    ('key', 'name', 'meant'),
    [
        ('model.backbone.type', 'mmpola.PolSwin', 'mmpola.PolaSwin'),
        ('model.backbone.type', 'PolaSwin', 'mmpola.PolaSwin'),
        ('model.backbone.type', 'PolaPVT', 'mmpola.PolaPVT'),
        ('model.roi_head.bbox_head.type', 'Shared2FCBBoxHed', 'Shared2FCBBoxHead'),
        ('default_hooks.logger.type', 'LogerHook', 'LoggerHook'),
        ('default_hooks.checkpoint.type', 'AtomicCheckpointHook', 'mmpola.AtomicCheckpointHook'),
        ('optim_wrapper.optimizer.type', 'AdmW', 'AdamW'),
        ('visualizer.type', 'DetLocalVisualiser', 'DetLocalVisualizer'),
        ('train_dataloader.dataset.pipeline.0.type', 'LoadImageFromFil', 'LoadImageFromFile'),
    ],
)
def test_a_misspelt_type(detector, key, name, meant):
    message = refusal_of(detector, **{key: name})
    assert message.startswith(f'{key}: expected a name in the ')
    assert message.endswith(f' registry, got {name}; did you mean {meant}?')


def test_the_habit_of_openmmlab_to_import_a_package_and_leave_out_its_scope(tmp_path):
    file = tmp_path / 'unscoped.py'
    file.write_text(UNSCOPED)
    message = refusal(validate_config, Config.fromfile(file))
    assert message.startswith(
        'model.backbone.type: expected a name in the mmdet::model registry, got PolaSwin'
    )
    assert 'mmpola.PolaSwin' in message


@pytest.mark.parametrize(('key', 'value', 'rule'), VALUES)
def test_a_value_against_the_rule(detector, key, value, rule):
    message = refusal_of(detector, **{key: value})
    stated = message.partition('; did you mean ')[0]
    assert stated in [f'{key}: expected {rule}, got {given}' for given in (value, repr(value))]


TRAINING_ONLY = {
    'optim_wrapper.optimizer.type': 'NotInstalled',
    'optim_wrapper.accumulative_counts': 0,
    'param_scheduler.0.type': 'NotInstalled',
    'train_cfg.max_epochs': 'zwei',
    'train_dataloader.batch_size': 0,
    'train_dataloader.batchsize': 2,
    'train_dataloader.dataset.pipeline.0.type': 'NotInstalled',
    'val_evaluator.type': 'NotInstalled',
}
RUNNER_ONLY = {
    'custom_hooks': [{'type': 'NotInstalled'}],
    'default_hooks.logger.type': 'NotInstalled',
    'test_evaluator.type': 'NotInstalled',
    'test_dataloader.batch_size': 0,
    'randomness.seed': -1,
    'log_level': 'FOO',
    'visualizer.vis_backends.0.type': 'NotInstalled',
}
"""Mistakes, by key, in what only training reads, and in what training and evaluation read."""


@pytest.mark.parametrize(
    ('used', 'mistakes'),
    [
        (EVALUATION_KEYS, TRAINING_ONLY),
        (PREDICTION_KEYS, {**TRAINING_ONLY, **RUNNER_ONLY}),
        (EXPORT_KEYS, {**TRAINING_ONLY, **RUNNER_ONLY, 'visualizer.type': 'NotInstalled'}),
    ],
    ids=['evaluation', 'prediction', 'export'],
)
def test_mistakes_in_what_is_not_read_are_none(detector, used, mistakes):
    cfg = copy.deepcopy(detector)
    cfg.merge_from_dict(mistakes)
    validate_config(cfg, used)
    for key, value in mistakes.items():
        refusal_of(detector, **{key: value})


@pytest.mark.parametrize(
    'used',
    [EVALUATION_KEYS, PREDICTION_KEYS, EXPORT_KEYS],
    ids=['evaluation', 'prediction', 'export'],
)
@pytest.mark.parametrize('key', ['model.backbone.type', 'test_dataloader.dataset.pipeline.0.type'])
def test_mistakes_in_what_is_read_stay_mistakes(detector, key, used):
    cfg = copy.deepcopy(detector)
    cfg.merge_from_dict({key: 'NotInstalled'})
    assert refusal(validate_config, cfg, used).startswith(f'{key}: expected a name in the ')


def test_parts_that_do_not_fit_each_other(detector):
    message = refusal_of(detector, **{'model.neck.num_outs': 2})
    assert message.startswith('model.neck: ')
    assert 'num_outs' in message
    message = refusal_of(detector, **{'model.backbone.out_indices': (0, 1, 2)})
    assert message.startswith('model.neck.in_channels: ')
    assert message.endswith(', [8, 16, 32], got [8, 16, 32, 64]')


@pytest.mark.parametrize(
    ('key', 'value', 'rule'),
    [
        ('in_channels', [8, 16, 24, 7], 'the channels of model.neck, [16, 16, 16, 16]'),
        ('in_index', [0, 1, 2, 4], 'indices below 4'),
    ],
)
def test_of_a_segmenter(tiny_segmentation, key, value, rule):
    changes = {f'model.decode_head.{key}': value}
    expected = f'model.decode_head.{key}: expected {rule}, got {value}'
    assert refusal_of(Config.fromfile(tiny_segmentation), **changes) == expected


def test_of_a_classifier(root):
    cfg = Config.fromfile(root / 'configs' / 'imagenet_pola_swin_t.py')
    cfg.val_evaluator.topk = (1, 1001)
    assert (
        refusal(validate_config, cfg)
        == 'val_evaluator.topk: expected at most model.num_classes, 1000, got (1, 1001)'
    )
    cfg.model.backbone.drop_rate = -0.1
    assert (
        refusal(validate_config, cfg)
        == 'model.backbone.drop_rate: expected a number in [0, 1), got -0.1'
    )
    del cfg.model.backbone.drop_rate
    cfg.model.backbone.drop_rat = 0.1
    message = refusal(validate_config, cfg)
    assert message.startswith('model.backbone: expected arguments of mmpola.PolaSwin')
    assert message.endswith(', got drop_rat; did you mean drop_rate?')


def test_a_misspelt_key_at_the_top_is_printed(tiny_config, capsys):
    with open(tiny_config, 'a') as file:
        file.write('\ntrian_cfg = dict(max_epochs=2)\n')
    validate_config(Config.fromfile(tiny_config))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith('trian_cfg: ')
    assert line.endswith('; did you mean train_cfg?')


@pytest.mark.parametrize('config', ['mask_rcnn_pola_swin_t_1x', 'upernet_pola_swin_t_160k'])
def test_published_configs_have_none(root, config):
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    validate_config(cfg)


@pytest.mark.parametrize('name', ['batchsize', 5])
def test_of_a_loader(detector, name):
    cfg = copy.deepcopy(detector)
    cfg.train_dataloader[name] = 4
    message = refusal(validate_config, cfg)
    assert message.startswith('train_dataloader: expected dataset, batch_size, ')
    assert f', got {name}' in message
    assert ('did you mean batch_size?' in message) == (name == 'batchsize')
