"""ImageClassifier: the authors' logits, published sizes, targets, and weights of every format."""

import re

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch.testing import assert_close

import mmpola
from mmpola.backbones.classifier import Classifier
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.load import load_weights
from mmpola.pretraining.image_classifier import ImageClassifier
from tests.backbones.test_base import SMALL as BACKBONES

SMALL = {cls.__name__: settings['arch'] for cls, settings in BACKBONES.values()}
each_backbone = pytest.mark.parametrize('name', SMALL)


def build(name, num_classes=5, backbone=None, **arguments):
    settings = {
        'arch': SMALL[name],
        'pretrain_img_size': 64,
        'drop_path_rate': 0.0,
        **(backbone or {}),
    }
    if getattr(mmpola, name).head.projection:
        arguments.setdefault('projection', 16)
    return MODELS.build(
        {
            'type': 'mmpola.ImageClassifier',
            'backbone': {'type': f'mmpola.{name}', **settings},
            'num_classes': num_classes,
            **arguments,
        }
    )


def pretrained(path):
    return {'type': 'Pretrained', 'checkpoint': str(path)}


@pytest.mark.parametrize(
    ('backbone', 'parameters'),
    [
        # The authors' files of PVT have a norm that is never used.
        ({'type': 'PolaPVT', 'arch': 'tiny'}, 12_924_648 - 1024),
        ({'type': 'PolaPVT', 'arch': 'small'}, 23_157_224 - 1024),
        ({'type': 'PolaPVT', 'arch': 'medium'}, 39_965_672 - 1024),
        ({'type': 'PolaPVT', 'arch': 'large'}, 54_366_568 - 1024),
        ({'type': 'PolaSwin', 'arch': 'tiny'}, 29_285_696),
        ({'type': 'PolaSwin', 'arch': 'small'}, 50_603_600),
        ({'type': 'PolaSwin', 'arch': 'base'}, 89_137_864),
        (
            {'type': 'PolaSwin', 'arch': 'base', 'pretrain_img_size': 384, 'window_size': 12},
            91_599_304,
        ),
        ({'type': 'PolaSwin', 'arch': 'tiny', 'attn_types': 'SSSS'}, 28_288_354),  # Swin-T
        ({'type': 'PolaFormerPP', 'arch': 'b0'}, 7_548_712),
        ({'type': 'PolaFormerPP', 'arch': 'b1'}, 9_227_496),
        ({'type': 'PolaFormerPP', 'arch': 'b2'}, 16_450_664),
        ({'type': 'PolaFormerPP', 'arch': 'b3'}, 27_145_896),
        ({'type': 'PolaFormerPP', 'arch': 'b4'}, 49_798_792),
        ({'type': 'PolaFormerPP', 'arch': 'b5'}, 97_773_000),
    ],
    ids=lambda value: '_'.join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_has_the_published_number_of_parameters(backbone, parameters):
    with torch.device('meta'):
        model = ImageClassifier(backbone, num_classes=1000)
    assert sum(x.numel() for x in model.parameters()) == parameters


@each_backbone
def test_every_parameter_gets_a_gradient(name):
    model = build(name)
    samples = [BaseDataElement(gt_label=torch.tensor(label)) for label in (0, 3)]
    model(torch.randn(2, 3, 64, 96), samples, mode='loss')['loss'].backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@each_backbone
def test_hard_labels_and_their_soft_targets_give_the_same_loss(name):
    model = build(name).eval()
    x = torch.randn(3, 3, 64, 64)
    labels = torch.tensor([1, 4, 0])
    tensors_and_a_number = (labels[0], labels[1:2], 0)
    hard = [BaseDataElement(gt_label=label) for label in tensors_and_a_number]
    soft = [BaseDataElement(gt_score=row) for row in torch.nn.functional.one_hot(labels, 5).float()]
    expected = torch.nn.functional.cross_entropy(model(x), labels)
    assert_close(model(x, hard, mode='loss'), {'loss': expected})
    assert_close(model(x, soft, mode='loss'), {'loss': expected})
    both = [BaseDataElement(gt_label=labels[0], gt_score=torch.full((5,), 0.2)) for _ in labels]
    soft_loss = -model(x).log_softmax(1).mean()
    assert_close(model(x, both, mode='loss'), {'loss': soft_loss})


def test_predictions_are_probabilities_on_the_given_samples():
    model = build('PolaSwin').eval()
    x = torch.randn(2, 3, 64, 64)
    samples = [
        BaseDataElement(gt_label=torch.tensor(label), metainfo={'img_path': str(label)})
        for label in (2, 3)
    ]
    with torch.no_grad():
        found = model(x, samples, mode='predict')
        logits = model(x, mode='tensor')
        alone = model(x, mode='predict')
    for given, sample, new, row in zip(samples, found, alone, logits, strict=True):
        assert sample is given
        assert sample.img_path == str(int(sample.gt_label))
        assert_close(sample.pred_score, row.softmax(0))
        assert sample.pred_label == row.argmax() == new.pred_label


@each_backbone
def test_its_own_checkpoints_load_into_classifiers_and_backbones(name, tmp_path):
    model = build(name).eval()
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, tmp_path / 'epoch_1.pth')
    loaded = build(name, init_cfg=pretrained(tmp_path / 'epoch_1.pth')).eval()
    loaded.init_weights()
    x = torch.randn(1, 3, 64, 64)
    assert_close(loaded(x), model(x), rtol=0, atol=0)

    other = build(
        name, num_classes=3, backbone={'init_cfg': pretrained(tmp_path / 'epoch_1.pth')}
    ).eval()
    before = other.head.weight.clone()
    other.init_weights()
    assert_close(other.forward_features(x), model.forward_features(x), rtol=0, atol=0)
    assert_close(other.head.weight, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ('change', 'problem'),
    [
        (
            lambda w: w | {'head.weight': torch.ones(7, 128)},
            'wrong shape: head.weight expected [5, 128], got [7, 128]',
        ),
        (
            lambda w: {key: x for key, x in w.items() if not key.startswith('head.')},
            'missing: head.weight [5, 128], head.bias [5]',
        ),
        (
            lambda w: w | {'backbone.layers.0.more': torch.ones(1)},
            'unknown: backbone.stages.0.more [1]',
        ),
    ],
    ids=['other classes', 'no head', 'unknown tensor'],
)
def test_a_file_that_does_not_fit_is_refused(change, problem, tmp_path):
    model = build('PolaSwin')
    path = tmp_path / 'epoch_1.pth'
    before = {key: x.clone() for key, x in model.state_dict().items()}
    torch.save(change({key: x + 1 for key, x in before.items()}), path)
    with pytest.raises(CheckpointError, match=re.escape(problem)) as raised:
        load_weights(model, path)
    assert str(raised.value).startswith(f'{path}: does not fit ImageClassifier')
    assert_close(model.state_dict(), before, rtol=0, atol=0)


@each_backbone
def test_the_plain_classifier_computes_the_same(name):
    model = build(name).eval()
    arguments = {'arch': SMALL[name], 'pretrain_img_size': 64}
    projection = 16 if model.backbone.head.projection else None
    network = Classifier(type(model.backbone), 5, projection=projection, arguments=arguments).eval()
    network.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 40, 72)
    assert_close(network(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize('out_indices', [(0, 1, 2, 3), (1,)])
def test_uses_the_last_map_of_out_indices(out_indices):
    model = build('PolaSwin', backbone={'out_indices': out_indices})
    assert model.head.in_features == model.backbone.embed_dims[out_indices[-1]]
    model(torch.randn(1, 3, 64, 64)).sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ('name', 'value', 'named'),
    [
        ('num_classes', 0, 'num_classes: expected '),
        ('projection', 64, 'projection: expected '),
        ('backbone', {'out_norm': True}, 'out_norm: expected '),
        ('backbone', {'type': 'mmpola.PolaSwim'}, 'backbone: expected one of .*PolaPVT, '),
        ('init_cfg', 'weights.pth', 'init_cfg: expected '),
    ],
)
def test_bad_arguments(name, value, named):
    backbone = {'type': 'mmpola.PolaSwin', 'arch': SMALL['PolaSwin']}
    if name == 'backbone':
        value = {**backbone, **value}
    with pytest.raises(ValueError, match=f'^{named}'):
        ImageClassifier(**{'backbone': backbone, 'num_classes': 5, name: value})


LABELLED = BaseDataElement(gt_label=torch.tensor(1))


@pytest.mark.parametrize(
    ('mode', 'samples', 'named'),
    [
        ('train', None, 'mode'),
        ('loss', None, 'data_samples'),
        ('loss', [LABELLED, BaseDataElement()], 'data_samples'),
    ],
)
def test_bad_calls(mode, samples, named):
    with pytest.raises(ValueError, match=f'^{named}: expected '):
        build('PolaSwin')(torch.zeros(2, 3, 32, 32), samples, mode=mode)
