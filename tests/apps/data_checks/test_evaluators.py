"""What the checks say about splits and evaluators that do not belong together."""

import json
import re

import pytest

from mmpola.apps.data_checks import check_data
from tests.helpers.refusals import refusal


@pytest.fixture
def truth(detection, coco):
    """The validation annotations of the copy, which data set and evaluator of `detection` read."""
    path = coco / 'annotations' / 'instances_val2017.json'
    for split in ('val', 'test'):
        detection[f'{split}_dataloader'].dataset.data_root = f'{coco}/'
        detection[f'{split}_evaluator'].ann_file = str(path)
    return path


def change(path, function):
    """Apply a function to every annotation of a file."""
    content = json.loads(path.read_text())
    for annotation in content['annotations']:
        function(annotation)
    path.write_text(json.dumps(content))


def warnings(cfg, splits=('train', 'val', 'test')):
    return [line for report in check_data(cfg, splits) for line in report.warnings]


@pytest.mark.parametrize(
    ('classes', 'rule'),
    [
        (('circle', 'square', 'triangle', 'star', 'ring', 'Cross'), 'cross from label 5 on, got C'),
        (('square', 'circle', 'triangle', 'star', 'ring', 'cross'), 'circle, square, .*, got squ'),
    ],
)
def test_classes_of_the_splits_differ(classes, rule, segmentation):
    segmentation.val_dataloader.dataset.metainfo = dict(classes=classes)
    message = refusal(check_data, segmentation, ('train', 'val'))
    start = 'val_dataloader.dataset: expected the classes of train_dataloader in their order'
    assert re.search(f'{start}.*{rule}', message)


def test_an_evaluator_of_another_split(detection, truth, annotations):
    detection.val_evaluator.ann_file = f'{truth.parent}/../annotations/{truth.name}'
    assert not warnings(detection)  # paths are resolved
    detection.test_evaluator.ann_file = str(annotations.path)
    (line,) = warnings(detection)
    assert line.startswith('test_evaluator.ann_file: expected an annotation file of test_dataload')
    assert f'got {annotations.path}' in line


def test_indices_and_the_whole_file(detection, truth):
    detection.val_dataloader.dataset.indices = 1
    (line,) = warnings(detection, ('train', 'val'))
    assert line.startswith('val_evaluator.ann_file: 1 of 4 images are evaluated')
    assert 'AP counts the others as missed' in line
    detection.val_evaluator.ann_file = None  # the images' own annotations
    assert not warnings(detection, ('train', 'val'))


@pytest.mark.parametrize('field', ['iscrowd', 'segmentation'])
def test_fields_that_an_evaluation_needs(field, detection, truth):
    change(truth, lambda annotation: annotation.pop(field))
    detection.val_dataloader.dataset.pipeline[2].with_mask = False
    detection.test_dataloader.dataset.pipeline[2].with_mask = False
    message = refusal(check_data, detection, ('train', 'val', 'test'))
    assert message.count('\n') == 0  # once, though two evaluators read the file
    assert f"annotations have no '{field}', without which evaluation fails; write" in message
    detection.val_evaluator.metric = 'bbox'
    if field == 'segmentation':
        assert not warnings(detection, ('train', 'val'))


def test_an_annotation_with_the_id_0(detection, truth, annotations):
    annotations['annotations'][0]['id'] = 0
    annotations.save()
    assert not warnings(detection)  # of the training file, which nothing evaluates
    first = json.loads(truth.read_text())['annotations'][0]['id']
    change(truth, lambda annotation: annotation.update(id=annotation['id'] - first))
    (line,) = warnings(detection)
    assert (
        line == f'{truth}: an annotation has the id 0 and counts as never found; number them from 1'
    )
