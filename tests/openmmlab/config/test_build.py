"""Mistakes in the model of a config, each one line before data and weights are read."""

import copy
import re

import pytest
import torch
from mmengine.config import Config

from mmpola.openmmlab.config.build import build_model, validate_config
from tests.helpers.configs import OTHERS, TINY
from tests.helpers.refusals import refusal


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
        ('model.backbone.arch', 'atto', 'model: ValueError: arch: expected one of '),
        ('model.backbone.drop_path_rate', 1.5, 'model: ValueError: drop_path_rate: '),
        ('model.backbone.drop_path_rat', 0.1, "model: TypeError: PolaSwin.* got .*'drop_path_rat'"),
        ('model.backbon', 1, "model: TypeError: MaskRCNN.* got .*'backbon'"),
        ('model.backbone.type', 'mmpola.PolSwin', 'model: mmpola.PolSwin is not in the '),
        ('model.roi_head.mask_head.num_clases', 3, "model: TypeError: .* got .*'num_clases'"),
        ('model.backbone.type', 'PolaSwin', 'model: PolaSwin is not in .*; write mmpola.PolaSwin$'),
        ('model.neck.num_outs', 2, r'model: .*fpn\.py, line .*: assert num_outs >= self.num_ins '),
        ('model.neck.in_channels', [8, 16, 32, 255], r'model\.neck: .*\[8, 16, 32, 64\].* 255 '),
        ('model.backbone.out_indices', (0, 1, 2), r'model\.neck: .*\[8, 16, 32\].*len\(inputs\)'),
    ],
)
def test_a_mistake_is_one_line_with_the_error_of_its_constructor(detector, key, value, named):
    assert re.match(named, refusal_of(detector, **{key: value}))


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
    assert message.startswith(f'model.{head}: cannot read ')
    assert '[96, 192, 384, 768] channels' in message


def test_the_head_of_mask2former(root):
    cfg = Config.fromfile(root / 'configs' / 'mask2former_pola_swin_t_50e.py')
    message = refusal_of(cfg, **{'model.panoptic_head.in_channels': [96, 192, 384, 767]})
    assert message.startswith('model.panoptic_head: cannot read ')


@pytest.mark.parametrize('backbone', OTHERS.values(), ids=OTHERS)
def test_the_neck_of_another_backbone(detector, backbone):
    cfg = copy.deepcopy(detector)
    cfg.model.backbone = backbone
    validate_config(cfg)
    necks = [cfg.model.neck, dict(type='mmdet.BFP', in_channels=16, num_levels=5)]
    validate_config(Config({**cfg, 'model': {**cfg.model, 'neck': necks}}))
    message = refusal_of(cfg, **{'model.neck.in_channels': [8, 16, 32, 255]})
    assert message.startswith('model.neck: cannot read ')
    assert '[8, 16, 32, 64] channels' in message


@pytest.mark.parametrize(
    ('part', 'kind'),
    [('backbone', AssertionError), ('neck', TypeError), ('neck', RuntimeError)],
)
def test_what_may_run_elsewhere_is_not_refused(detector, part, kind, monkeypatch):
    """Another size of the image, more arguments, or an operator that needs a GPU."""

    def forward(self, maps):
        raise kind('not here')

    monkeypatch.setattr(type(getattr(build_model(detector), part)), 'forward', forward)
    validate_config(detector)


def test_of_a_classifier(root):
    cfg = Config.fromfile(root / 'configs' / 'imagenet_pola_swin_t.py')
    validate_config(cfg)
    assert 'drop_rate: expected ' in refusal_of(cfg, **{'model.backbone.drop_rate': -0.1})
    assert 'num_classes: expected ' in refusal_of(cfg, **{'model.num_classes': 0})


def test_a_part_that_the_bases_do_not_have(detector):
    message = refusal_of(detector, **{'model.auxiliary_head': dict(num_classes=3)})
    assert message.startswith('model.auxiliary_head: expected a type')


def test_normalisation_over_processes_needs_no_process_group(detector):
    cfg = copy.deepcopy(detector)
    norm = dict(type='MMSyncBN', requires_grad=True)
    cfg.model.neck.norm_cfg = norm
    model = validate_config(cfg)
    assert isinstance(model.neck.fpn_convs[0].bn, torch.nn.BatchNorm2d)
    assert cfg.model.neck.norm_cfg.type == 'MMSyncBN'


def test_a_model_is_built_as_the_runner_builds_it(detector):
    """On the CPU, with the preprocessor that stands beside the model; nothing else changes."""
    cfg = copy.deepcopy(detector)
    cfg.data_preprocessor = cfg.model.pop('data_preprocessor')
    cfg.data_preprocessor.mean = [1.0, 2.0, 3.0]
    before = cfg.to_dict()
    state = torch.random.get_rng_state()
    model = build_model(cfg)
    assert model.data_preprocessor.mean.flatten().tolist() == [1.0, 2.0, 3.0]
    assert {x.device.type for x in model.parameters()} == {'cpu'}
    assert cfg.to_dict() == before
    assert torch.equal(torch.random.get_rng_state(), state)
