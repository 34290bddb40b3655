"""Training checkpoints: what they must hold, and whether they fit the model of a config."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmpola.checkpoint.load import compare
from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.start import fit as training_checkpoint
from mmpola.pretraining.image_classifier import ImageClassifier
from tests.helpers.configs import SMALL_ARCHS
from tests.helpers.refusals import refusal


def test_what_a_file_may_lack():
    """tests/checkpoint/test_load.py has the problems."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    weights = model.state_dict()
    del weights['1.num_batches_tracked']  # BatchNorm layers in old files have no counter
    assert compare(model, weights, 'a file').problems == []
    assert compare(model, {}, 'a file', may_lack=('0.', '1.')).problems == []


def test_other_files_are_refused(tmp_path):
    path = tmp_path / 'weights.pth'
    for content in ({'model': {'epoch': 3}, 'config': 1}, 3):
        torch.save(content, path)
        with pytest.raises(UsageError, match=f'{path}: no weights found, '):
            training_checkpoint.read_training_checkpoint(path)
    path.write_text('weights')
    with pytest.raises(UsageError, match=f'{path}: not a checkpoint, or truncated'):
        training_checkpoint.read_training_checkpoint(path)
    torch.save({'module.a': torch.ones(1)}, path)
    assert list(training_checkpoint.read_training_checkpoint(path).weights) == ['a']


@MODELS.register_module()
class Consuming(torch.nn.Linear):
    """Removes settings from its config while it is built, as DETR-like detectors do."""

    def __init__(self, encoder):
        super().__init__(2, encoder.pop('width'))


def test_the_config_survives_a_model_that_changes_it(tmp_path):
    cfg = Config({'model': {'type': 'Consuming', 'encoder': {'width': 3}}})
    torch.save({'state_dict': Consuming({'width': 3}).state_dict()}, tmp_path / 'epoch_1.pth')
    checkpoint = training_checkpoint.read_training_checkpoint(tmp_path / 'epoch_1.pth')
    for _ in range(2):
        training_checkpoint.fit_checkpoint(checkpoint, build_model(cfg))
    assert cfg.model.encoder == {'width': 3}


def test_the_model_inside_test_time_augmentation_is_compared(
    tiny_config, write_checkpoint, tmp_path
):
    checkpoint = training_checkpoint.read_training_checkpoint(
        write_checkpoint(tiny_config, tmp_path / 'epoch_1.pth')
    )
    cfg = Config.fromfile(tiny_config)
    cfg.model = dict(type='DetTTAModel', module=cfg.model)
    training_checkpoint.fit_checkpoint(checkpoint, build_model(cfg))
    cfg.model.module.roi_head.bbox_head.num_classes = 5
    with pytest.raises(UsageError, match='does not fit MaskRCNN'):
        training_checkpoint.fit_checkpoint(checkpoint, build_model(cfg))


def test_a_backbone_is_no_whole_model(tiny_config, write_checkpoint, tmp_path):
    path = write_checkpoint(tiny_config, tmp_path / 'whole.pth')
    weights = torch.load(path)['state_dict']
    torch.save({name: x for name, x in weights.items() if name.startswith('backbone.')}, path)
    message = refusal(training_checkpoint.read_checkpoint_for, path, build(tiny_config))
    assert message.startswith(f'{path}: expected the weights of a whole MaskRCNN, got none of its ')
    assert 'init_cfg' in message


def build(path):
    return build_model(Config.fromfile(path))


def test_a_training_run_starts_from_weights_whose_heads_differ(
    tiny_config, write_checkpoint, tmp_path, capsys
):
    other = tmp_path / 'other.py'
    head = 'dict(num_classes=11)'
    other.write_text(
        f'_base_ = {str(tiny_config)!r}\n'
        f'model = dict(roi_head=dict(bbox_head={head}, mask_head={head}))'
    )
    checkpoint = training_checkpoint.read_training_checkpoint(
        write_checkpoint(other, tmp_path / 'start.pth')
    )
    weights = training_checkpoint.starting_weights(checkpoint, build(tiny_config))
    left = checkpoint.weights.keys() - weights.keys()
    assert len(left) == 6
    assert {'.'.join(name.split('.')[:2]) for name in left} == {
        'roi_head.bbox_head',
        'roi_head.mask_head',
    }
    total = len(checkpoint.weights)
    line = capsys.readouterr().out
    assert f'{total - 6} of {total} tensors' in line
    assert 'roi_head.bbox_head, roi_head.mask_head' in line


def test_a_training_run_does_not_start_from_weights_that_are_not_finite(
    tiny_config, write_checkpoint, tmp_path
):
    path = write_checkpoint(tiny_config, tmp_path / 'start.pth')
    content = torch.load(path)
    content['state_dict']['backbone.stem.proj.weight'] *= float('nan')
    torch.save(content, path)
    checkpoint = training_checkpoint.read_training_checkpoint(path)
    model = build(tiny_config)
    message = refusal(training_checkpoint.starting_weights, checkpoint, model)
    assert 'not finite: backbone.stem.proj.weight' in message


def test_weights_of_which_none_fits_the_backbone_are_refused(
    tiny_config, write_checkpoint, tmp_path
):
    path = write_checkpoint(tiny_config, tmp_path / 'start.pth')
    weights = torch.load(path)['state_dict']
    torch.save(
        {'state_dict': {name.replace('backbone.', 'body.'): x for name, x in weights.items()}}, path
    )
    message = refusal(
        training_checkpoint.starting_weights,
        training_checkpoint.read_training_checkpoint(path),
        build(tiny_config),
    )
    assert message.startswith(f'load_from: {path}: ')


def test_only_what_differs_from_the_file_is_printed(tmp_path, capsys):
    def classifier(side=32):
        backbone = {'arch': SMALL_ARCHS['mmpola.PolaSwin'], 'pretrain_img_size': side}
        return ImageClassifier({'type': 'mmpola.PolaSwin', **backbone}, num_classes=3)

    weights = classifier().state_dict()
    path = tmp_path / 'file.pth'
    for content, side, line in (
        ({'state_dict': weights}, 32, ''),
        ({'state_dict': weights, 'ema_state_dict': weights}, 32, 'averaged (EMA) weights'),
        ({'state_dict': {**weights, 'neck.w': torch.ones(1)}}, 32, 'dropped: neck.w'),
        ({'state_dict': weights}, 64, 'resized: '),
    ):
        torch.save(content, path)
        training_checkpoint.read_checkpoint_for(path, classifier(side))
        printed = capsys.readouterr().out
        assert line in printed
        assert bool(printed) == bool(line)
