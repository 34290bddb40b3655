"""Training checkpoints: what they must hold, and whether they fit the model of a config."""

import copy
import re

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope

from mmpola.checkpoint.load import fit_weights
from mmpola.engine import checkpoint as training_checkpoint
from mmpola.engine.validate import build_on_meta
from mmpola.messages import UsageError


def problems(model, weights, **options):
    return fit_weights(model, weights, 'a file', **options)[1].problems


def test_misfits_are_counted_and_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    weights = model.state_dict()
    assert problems(model, weights) == []
    weights.pop('1.num_batches_tracked')  # BatchNorm layers in old files have no counter
    assert problems(model, weights) == []
    weights.pop('0.bias')
    weights |= {'0.weight': torch.ones(2, 3), '1.bias': torch.tensor([1.0, float('nan'), 0.0]), 'head': torch.ones(4)}
    assert problems(model, weights) == [
        'missing: 0.bias [3]',
        'not finite: 1.bias has 1 NaN or infinite values',
        'unknown: head [4]',
        'wrong shape: 0.weight expected [3, 2], got [2, 3]',
    ]
    assert fit_weights(model, weights, 'a file')[0] == {}
    assert problems(model, {}, may_lack=('0.', '1.')) == []


def test_other_files_are_refused(tmp_path):
    path = tmp_path / 'weights.pth'
    for content in ({'model': {'epoch': 3}, 'config': 1}, 3):
        torch.save(content, path)
        with pytest.raises(UsageError, match=f'{path}: no weights found, '):
            training_checkpoint.read(path)
    path.write_text('weights')
    with pytest.raises(UsageError, match=f'{path}: not a checkpoint, or truncated'):
        training_checkpoint.read(path)
    torch.save({'module.a': torch.ones(1)}, path)
    assert list(training_checkpoint.read(path).weights) == ['a']


@pytest.fixture
def consuming_model():
    """Register a model that removes settings from its config while it is built, as DETR-like detectors do."""

    class Consuming(BaseModel):
        def __init__(self, encoder):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(encoder.pop('num_layers')))

        def forward(self):
            pass

    MODELS.register_module(module=Consuming)
    yield 'Consuming'
    MODELS.module_dict.pop('Consuming')


def test_the_config_survives_a_model_that_changes_it(consuming_model, tmp_path):
    cfg = Config({'model': {'type': consuming_model, 'encoder': {'num_layers': 2}}})
    path = tmp_path / 'epoch_1.pth'
    torch.save({'state_dict': MODELS.build(copy.deepcopy(cfg.model)).state_dict()}, path)
    checkpoint = training_checkpoint.read(path)
    for _ in range(2):
        training_checkpoint.check_fits(checkpoint, cfg, build_on_meta(cfg))
    assert cfg.model.encoder == {'num_layers': 2}


def test_the_model_inside_test_time_augmentation_is_compared(tiny_config, write_checkpoint, tmp_path):
    checkpoint = training_checkpoint.read(write_checkpoint(tiny_config, tmp_path / 'epoch_1.pth'))
    cfg = Config.fromfile(tiny_config)
    cfg.model = dict(type='DetTTAModel', module=cfg.model)
    training_checkpoint.check_fits(checkpoint, cfg, build_on_meta(cfg))
    cfg.model.module.roi_head.bbox_head.num_classes = 5
    with pytest.raises(UsageError, match='does not fit the MaskRCNN'):
        training_checkpoint.check_fits(checkpoint, cfg, build_on_meta(cfg))


def test_another_number_of_classes_is_named_by_its_key(tiny_config, write_checkpoint, tmp_path):
    classes = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')
    path = write_checkpoint(tiny_config, tmp_path / 'epoch_1.pth', meta={'dataset_meta': {'classes': classes}})
    cfg = Config.fromfile(tiny_config)
    training_checkpoint.check_fits(training_checkpoint.read(path), cfg, build_on_meta(cfg))
    cfg.model.roi_head.mask_head.num_classes = 80
    with pytest.raises(
        UsageError,
        match=re.escape(f'model.roi_head.mask_head.num_classes: expected 6, the number of classes in {path}'),
    ):
        training_checkpoint.check_fits(training_checkpoint.read(path), cfg, build_on_meta(cfg))


def on_meta(path):
    cfg = Config.fromfile(path)
    return cfg, build_on_meta(cfg)


def start_checkpoint(tiny_config, path, rename=lambda name: name, classes=None):
    """A checkpoint of the config's model; tensors are renamed, or those of its classes have another length."""
    cfg = Config.fromfile(tiny_config)
    init_default_scope(cfg.default_scope)
    if classes is not None:
        cfg.model.roi_head.bbox_head.num_classes = classes
        cfg.model.roi_head.mask_head.num_classes = classes
    weights = {rename(name): x for name, x in MODELS.build(cfg.model).state_dict().items()}
    torch.save({'state_dict': weights}, path)
    return path


def test_a_training_starts_from_weights_whose_heads_differ(tiny_config, tmp_path):
    checkpoint = training_checkpoint.read(start_checkpoint(tiny_config, tmp_path / 'start.pth', classes=11))
    line = training_checkpoint.check_start(checkpoint, *on_meta(tiny_config))
    total = len(checkpoint.weights)
    assert line == (
        f'load_from: {tmp_path}/start.pth: {total - 6} of {total} tensors are loaded; '
        'as initialised: roi_head.bbox_head, roi_head.mask_head'
    )


def test_weights_of_which_none_fits_the_backbone_are_refused(tiny_config, tmp_path):
    path = start_checkpoint(tiny_config, tmp_path / 'start.pth', rename=lambda name: name.replace('backbone.', 'body.'))
    with pytest.raises(UsageError) as raised:
        training_checkpoint.check_start(training_checkpoint.read(path), *on_meta(tiny_config))
    assert str(raised.value).startswith(f'load_from: {path}: expected weights for the backbone of {tiny_config}, got ')


def test_pretrained_weights_are_removed_everywhere():
    pretrained = {'type': 'Pretrained', 'checkpoint': 'none.pth'}
    random = {'type': 'Normal', 'std': 0.01}
    heads = [{'conv': {'init_cfg': [dict(pretrained)]}}, {'init_cfg': random}]
    cfg = Config({'model': {'init_cfg': dict(pretrained), 'heads': heads}})
    training_checkpoint.remove_pretrained(cfg.model)
    assert cfg.model.to_dict() == {'init_cfg': None, 'heads': [{'conv': {'init_cfg': None}}, {'init_cfg': random}]}
