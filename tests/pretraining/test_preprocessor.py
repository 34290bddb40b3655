"""Batches are stacked and mixed, and their soft targets sum to 1."""

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement
from torch.testing import assert_close

from mmpola.pretraining.image_classifier import ImageClassifier
from mmpola.pretraining.preprocessor import ClassificationPreprocessor

MIXUP = {'mixup_alpha': 0.8, 'cutmix_alpha': 1.0}
ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}


def batch(number, size=8):
    """Image i has the value i everywhere; its class is i."""
    images = torch.arange(number)[:, None, None, None].expand(-1, 3, size, size).float().clone()
    return {'inputs': images, 'data_samples': [BaseDataElement(gt_label=i) for i in range(number)]}


def preprocessor(**arguments):
    made = ClassificationPreprocessor(**arguments)
    made.num_classes = 6
    return made


def scores(data):
    return torch.stack([sample.gt_score for sample in data['data_samples']])


@pytest.mark.parametrize('number', [6, 5, 1])
@pytest.mark.parametrize('mode', ['batch', 'pair', 'elem'])
@pytest.mark.parametrize('alphas', [(1.0, 0.0), (0.0, 1.0)], ids=['mixup', 'cutmix'])
def test_targets_are_the_shares_of_the_images(number, mode, alphas):
    made = preprocessor(mixup={'mixup_alpha': alphas[0], 'cutmix_alpha': alphas[1], 'mode': mode})
    np.random.seed(0)
    given = batch(number)
    found = made(given, training=True)
    target = scores(found)
    even = number // 2 * 2
    assert_close(target.sum(1), torch.ones(number))
    # the mean of a mixed image is that of its two images' values, weighted by the target
    assert_close(found['inputs'].mean((1, 2, 3)), target @ torch.arange(6.0))
    if even < number:
        assert target[-1, number - 1] == 1
    assert even == 0 or (target[:even].max(1).values < 1).any()
    assert_close(given['inputs'], batch(number)['inputs'], rtol=0, atol=0)


def test_label_smoothing():
    expected = torch.full((2, 6), 0.1 / 6)
    expected[0, 0] = expected[1, 1] = 0.9 + 0.1 / 6
    assert_close(scores(preprocessor(label_smoothing=0.1)(batch(2), training=True)), expected)
    assert_close(
        scores(preprocessor(mixup=MIXUP | {'prob': 0.0}, label_smoothing=0.1)(batch(2), True)),
        expected,
    )


def test_without_mixup_labels_stay_indices():
    found = preprocessor()(batch(3), training=True)
    assert [sample.gt_label.item() for sample in found['data_samples']] == [0, 1, 2]
    assert found['data_samples'][0].gt_label.dtype == torch.int64
    assert 'gt_score' not in found['data_samples'][0]


def test_evaluation_changes_nothing_and_lists_are_stacked():
    given = batch(3)
    found = preprocessor(mixup=MIXUP)({**given, 'inputs': list(given['inputs'])})
    assert_close(found['inputs'], given['inputs'], rtol=0, atol=0)
    assert [sample.gt_label for sample in found['data_samples']] == [0, 1, 2]


def test_channels_last():
    found = preprocessor(mixup=MIXUP, channels_last=True)(batch(4), training=True)
    assert found['inputs'].is_contiguous(memory_format=torch.channels_last)


def test_the_classifier_sets_its_number_of_classes():
    config = {'type': 'mmpola.ClassificationPreprocessor', 'mixup': MIXUP, 'label_smoothing': 0.1}
    backbone = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'pretrain_img_size': 32}
    model = ImageClassifier(backbone, 5, data_preprocessor=config)
    data = model.data_preprocessor(batch(4, 32), training=True)
    assert scores(data).shape == (4, 5)
    assert model(**data, mode='loss')['loss'].isfinite()


def test_a_label_that_the_model_does_not_have_is_named_with_its_file():
    given = batch(2)
    given['data_samples'][1] = BaseDataElement(metainfo={'img_path': 'train/z/1.jpg'}, gt_label=6)
    with pytest.raises(ValueError, match=r'^train/z/1\.jpg: .*num_classes=6'):
        preprocessor()(given, training=True)


@pytest.mark.parametrize(
    ('name', 'value'), [('label_smoothing', 1.0), ('mixup', {'mixup_alpha': 0.0})]
)
def test_bad_arguments(name, value):
    with pytest.raises(ValueError, match=f'^{name}: expected '):
        ClassificationPreprocessor(**{name: value})


def test_soft_targets_need_a_number_of_classes():
    with pytest.raises(ValueError, match=r'^num_classes: expected '):
        ClassificationPreprocessor(mixup=MIXUP)(batch(2), training=True)
