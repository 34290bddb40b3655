"""Mistakes in the model of a config, each one line before data and weights are read."""

import copy

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS, Registry

from mmpola.engine.config_errors import keys_in_errors
from mmpola.engine.validate import validate_config
from mmpola.messages import UsageError
from tests.helpers.configs import TINY
from tests.helpers.refusals import refusal

BUILD = Registry.build


@pytest.fixture(scope='module')
def detector(root, shapes, tmp_path_factory):
    path = tmp_path_factory.mktemp('detector') / 'tiny.py'
    base = root / 'configs' / 'mask_rcnn_pola_swin_shapes.py'
    path.write_text(TINY.format(base=str(base), data=f'{shapes}/coco/'))
    return Config.fromfile(path)


def refusal_of(cfg, **changes):
    """Return the message for a config with these changes, which checking leaves as it is."""
    cfg = copy.deepcopy(cfg)
    cfg.merge_from_dict(changes)
    before = cfg.to_dict()
    message = refusal(validate_config, cfg)
    assert cfg.to_dict() == before
    assert '\n' not in message
    return message


@pytest.mark.parametrize(
    ('key', 'value', 'named'),
    [
        ('model.backbone.arch', 'atto', 'model.backbone.arch: '),
        ('model.backbone.drop_path_rate', 1.5, 'model.backbone.drop_path_rate: '),
        ('model.backbone.drop_path_rat', 0.1, 'model.backbone: TypeError: '),
        ('model.backbon', 1, 'model: TypeError: '),
        ('model.backbone.type', 'mmpola.PolSwin', 'model.backbone.type: '),
        ('model.roi_head.bbox_head.num_clases', 3, 'model.roi_head.bbox_head: TypeError: '),
        ('model.neck.num_outs', 2, 'model.neck: AssertionError: '),
        ('model.neck.in_channels', [8, 16, 32, 255], 'model.neck.in_channels: '),
        ('model.backbone.out_indices', (0, 1, 2), 'model.neck.in_channels: '),
    ],
)
def test_a_mistake_is_named_by_its_key(detector, key, value, named):
    message = refusal_of(detector, **{key: value})
    assert message.startswith(named)
    assert Registry.build is BUILD


def test_the_channels_of_the_backbone_are_stated(detector):
    message = refusal_of(detector, **{'model.neck.in_channels': [8, 16, 32, 255]})
    assert '[8, 16, 32, 64]' in message
    assert '255' in message


def test_a_backbone_without_its_scope(detector):
    message = refusal_of(detector, **{'model.backbone.type': 'PolaSwin'})
    assert message.startswith('model.backbone.type: PolaSwin is not in the mmdet::model registry')
    assert message.endswith('write mmpola.PolaSwin')


@pytest.mark.parametrize(
    ('head', 'key', 'value'),
    [
        ('decode_head', 'in_channels', [96, 192, 384, 767]),
        ('decode_head', 'in_index', [0, 1, 2, 4]),
        ('auxiliary_head', 'in_channels', 192),
    ],
)
def test_the_heads_of_a_segmenter(root, head, key, value):
    cfg = Config.fromfile(root / 'configs' / 'upernet_pola_swin_t_160k.py')
    validate_config(cfg)
    message = refusal_of(cfg, **{f'model.{head}.{key}': value})
    assert message.startswith(f'model.{head}.{key}: ')


def test_of_a_classifier(root):
    cfg = Config.fromfile(root / 'configs' / 'imagenet_pola_swin_t.py')
    validate_config(cfg)
    assert refusal_of(cfg, **{'model.backbone.drop_rate': -0.1}).startswith('model: drop_rate: ')
    assert refusal_of(cfg, **{'model.num_classes': 0}).startswith('model.num_classes: ')


def test_other_parts_are_named_while_the_runner_builds_them():
    cfg = Config({'default_hooks': {'logger': {'type': 'LoggerHook', 'interval': 10}}})
    with keys_in_errors(cfg):
        HOOKS.build(cfg.default_hooks.logger)
        cfg.default_hooks.logger.intervall = 1
        with pytest.raises(UsageError, match=r'default_hooks\.logger: TypeError: .*intervall'):
            HOOKS.build(dict(cfg.default_hooks.logger))
        with pytest.raises(KeyError):
            HOOKS.build({'type': 'OfNoConfig'})
    assert Registry.build is BUILD
