"""Results of a detector as they are written."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from mmseg.datasets import BaseSegDataset

from mmpola.openmmlab.predict.results import (
    areas_by_class,
    counts_by_class,
    instances_as_json,
    label_map,
    numbers_note,
    panoptic_segments,
)


@pytest.mark.parametrize('boxes', ['boxes', 'no boxes', 'zeros'])
def test_instances_are_those_of_mmdet(boxes):
    masks = torch.zeros(2, 20, 30, dtype=torch.bool)
    masks[0, 3:7, 5:12] = True
    masks[0, 9, 20] = True
    instances = InstanceData(labels=torch.tensor([3, 1]), scores=torch.tensor([0.5, 0.25]))
    instances.masks = masks
    if boxes != 'no boxes':
        instances.bboxes = torch.tensor([[1.5, 2.0, 8.0, 9.0], [0.0, 0.0, 3.0, 4.0]])
        instances.bboxes *= boxes == 'boxes'
    expected = DetInferencer.pred2dict(None, DetDataSample(pred_instances=instances))
    assert instances_as_json(instances) == expected


def test_instances_without_masks_and_none_at_all():
    instances = InstanceData(labels=torch.zeros(0), scores=torch.zeros(0), bboxes=torch.zeros(0, 4))
    assert instances_as_json(instances) == {'labels': [], 'scores': [], 'bboxes': []}


def test_segments():
    """Three classes: two instances of class 1, stuff of class 2, void."""
    ids = np.array([[1001, 1001, 2001], [2, 2, 3]])
    image, segments = panoptic_segments(ids, ('wall', 'car', 'road'))
    decoded = image.astype(int) @ [1, 256, 256**2]
    assert decoded.tolist() == [[1001, 1001, 2001], [2, 2, 0]]
    assert segments == [
        {'id': 2, 'label': 2, 'class': 'road', 'instance': 0, 'area': 2},
        {'id': 1001, 'label': 1, 'class': 'car', 'instance': 1, 'area': 2},
        {'id': 2001, 'label': 1, 'class': 'car', 'instance': 2, 'area': 1},
    ]


def test_stuff_of_the_first_class_is_not_void():
    ids = np.array([[0, 1001, 2]])
    image, segments = panoptic_segments(ids, ('wall', 'car'))
    decoded = image.astype(int) @ [1, 256, 256**2]
    assert decoded.tolist() == [[2000, 1001, 0]]
    assert [(segment['id'], segment['label']) for segment in segments] == [(1001, 1), (2000, 0)]


@pytest.mark.parametrize(('classes', 'dtype'), [(2, np.uint8), (256, np.uint8), (257, np.uint16)])
@pytest.mark.parametrize('shape', [(1, 2, 3), (2, 3)])
def test_label_maps(classes, dtype, shape):
    labels = label_map(torch.full(shape, classes - 1), classes)
    assert labels.dtype == dtype
    assert labels.tolist() == [[classes - 1] * 3] * 2


@pytest.mark.parametrize(
    ('settings', 'numbers'),
    [
        ({}, None),
        ({'reduce_zero_label': True}, 'from 1 (reduce_zero_label)'),
        ({'metainfo': {'classes': ('b', 'a')}}, 'of all classes of the data set'),
        ({'metainfo': {'classes': ('b',)}, 'reduce_zero_label': True}, 'of all classes'),
    ],
)
def test_numbers_that_annotation_files_have_otherwise(settings, numbers):
    class Own(BaseSegDataset):
        METAINFO: ClassVar = {'classes': ('a', 'b'), 'palette': [[0, 0, 0], [9, 9, 9]]}

    note = numbers_note(Own(lazy_init=True, **settings).metainfo)
    if numbers is None:
        assert note is None
    else:
        assert note.startswith('class numbers in preds/*.png: from 0; in the annotation files: ')
        assert numbers in note


def test_instances_in_a_few_words():
    classes = ('red', 'white', 'platelet')
    assert counts_by_class(torch.tensor([2, 0, 0]), classes) == '2 reds, 1 platelet'
    assert counts_by_class(torch.zeros(0, dtype=torch.long), classes) == 'nothing'
    words = ('person', 'bus', 'wine glass', 'bench', 'sheep', 'mouse', 'RBC')
    twice = 'persons, 2 buses, 2 wine glasses, 2 benches, 2 sheep, 2 mice, 2 RBC'
    assert counts_by_class(torch.arange(7).repeat(2), words) == f'2 {twice}'


def test_areas_in_a_few_words():
    """The three largest; void is part of the picture, but no class."""
    labels = torch.tensor([[0, 1, 1, 1, 1], [2, 2, 2, 255, 3]])
    expected = 'road 40%, tree 30%, sky 10%'
    assert areas_by_class(labels, ('sky', 'road', 'tree', 'car')) == expected
    assert areas_by_class(torch.full((2, 2), 255), ('sky', 'road')) == 'nothing'
