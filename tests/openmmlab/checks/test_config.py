"""Checks of a config and its model, before any data is read."""

import copy

import pytest
import torch
from mmengine.config import Config

from mmpola.messages import listed
from mmpola.openmmlab.checks.table import FIRST, Run, run_checks
from mmpola.openmmlab.config.build import build_model
from tests.helpers.configs import OTHERS
from tests.helpers.refusals import only


def found(cfg, model=None):
    """Return (name, text) of what the checks of a config find."""
    run = Run(cfg, ('train',), False, [], model)
    return [(one.name, one.text) for one in run_checks(FIRST, run, [])]


def test_a_schedule_that_is_longer_than_the_run(tiny_config):
    cfg = Config.fromfile(tiny_config)
    only(found(cfg), 'schedule-length')
    cfg.param_scheduler = []
    assert not found(cfg)


def test_classifiers_that_are_evaluated_at_another_size(root):
    cfg = Config.fromfile(root / 'configs' / 'imagenet_pola_swin_t.py')
    assert not found(cfg)
    cfg.train_dataloader.dataset.transform.input_size = 96
    options = only(found(cfg), 'image-sizes').partition('--cfg-options ')[2].split()
    assert options == [
        f'{split}_dataloader.dataset.transform.input_size=96' for split in ('val', 'test')
    ]
    cfg.merge_from_dict(dict.fromkeys((option.partition('=')[0] for option in options), 96))
    assert not found(cfg)


def without_gradient(model, shape):
    """Name the backbone's parameters that get no gradient from what the neck returns."""
    outputs = model.neck(model.backbone(torch.randn(shape)))
    sum(output.sum() for output in outputs).backward()
    return [
        name
        for name, value in model.backbone.named_parameters()
        if value.requires_grad and value.grad is None
    ]


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_maps_that_the_neck_never_reads(device, detection):
    model = build_model(detection).to(device)
    assert not found(detection, model)
    detection.model.neck.start_level = 1
    model = build_model(detection)
    text = only(found(detection, model.to(device)), 'unread-maps')
    assert text.startswith('model.backbone: norms.0.weight, norms.0.bias get no gradient')
    model = build_model(detection)
    assert without_gradient(model, (1, 3, 64, 64)) == ['norms.0.weight', 'norms.0.bias']
    detection.find_unused_parameters = True
    assert not found(detection, model)
    detection.find_unused_parameters = False
    detection.model.backbone.out_indices = (1, 2, 3)
    detection.model.neck.in_channels = [16, 32, 64]
    detection.model.neck.start_level = 0
    model = build_model(detection)
    assert not without_gradient(model, (1, 3, 64, 64))
    assert not found(detection, model.to(device))


@pytest.mark.parametrize('name', OTHERS)
def test_maps_of_another_backbone_that_the_neck_never_reads(name, detection):
    """Only mmdet's Swin learns a norm for each of them."""
    detection.model.backbone = OTHERS[name]
    assert not found(detection, build_model(detection))
    detection.model.neck.start_level = 1
    model = build_model(detection)
    names = without_gradient(copy.deepcopy(model), (1, 3, 64, 64))
    assert names == (['norm0.weight', 'norm0.bias'] if name == 'Swin' else [])
    if names:
        assert f': {listed(names)} get' in only(found(detection, model), 'unread-maps')
    else:
        assert not found(detection, model)


def test_maps_that_no_head_reads(segmentation):
    segmentation.model.neck = None
    head = segmentation.model.decode_head
    widths = build_model(segmentation).backbone.embed_dims
    head.update(_delete_=None, type='FCNHead', in_channels=widths[2], in_index=2, channels=8)
    for key in ('_delete_', 'feature_strides'):
        head.pop(key, None)
    text = only(found(segmentation, build_model(segmentation)), 'unread-maps')
    assert 'stages.3.' in text
    segmentation.model.backbone.frozen_stages = 4
    assert not found(segmentation, build_model(segmentation))
