"""What the checks say about splits and evaluators that do not belong together."""

import json
import shutil

import pytest
from mmengine.registry import METRICS
from PIL import Image
from pycocotools.coco import COCO

from mmpola.openmmlab.checks import check_data
from mmpola.openmmlab.config.types import scope, type_class
from tests.helpers.refusals import errors, only, warnings

EVERY = ('train', 'val', 'test')


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


def without_masks(cfg):
    """Let validation and test load boxes only."""
    for split in ('val', 'test'):
        for step in cfg[f'{split}_dataloader'].dataset.pipeline:
            if step.type == 'LoadAnnotations':
                step.with_mask = False


@pytest.mark.parametrize(
    ('classes', 'got'),
    [
        (('circle', 'square', 'triangle', 'star', 'ring', 'Cross'), 'from label 5 on, got Cross'),
        (('square', 'circle', 'triangle', 'star', 'ring', 'cross'), 'from label 0 on, got square'),
    ],
)
def test_classes_of_the_splits_differ(classes, got, segmentation):
    segmentation.val_dataloader.dataset.metainfo = dict(classes=classes)
    assert got in only(errors(segmentation, ('train', 'val')), 'class-lists')


def test_an_evaluator_of_another_split(detection, truth, annotations):
    detection.val_evaluator.ann_file = f'{truth.parent}/../annotations/{truth.name}'
    assert not warnings(detection, EVERY)  # paths are resolved
    detection.test_evaluator.ann_file = str(annotations.path)
    text = only(warnings(detection, EVERY), 'evaluator-file')
    assert text.startswith('test_evaluator.ann_file: expected an annotation file of test_dataload')
    assert f'got {annotations.path}' in text


def test_indices_and_the_whole_file(detection, truth):
    detection.val_dataloader.dataset.indices = 1
    text = only(warnings(detection, ('train', 'val')), 'evaluator-images')
    assert text.startswith('val_evaluator.ann_file: 1 of 4 images with objects are evaluated')
    detection.val_evaluator.ann_file = None  # the images' own annotations
    assert not warnings(detection, ('train', 'val'))


@pytest.mark.parametrize('field', ['iscrowd', 'segmentation'])
def test_fields_that_an_evaluation_needs(field, detection, truth):
    change(truth, lambda annotation: annotation.pop(field))
    without_masks(detection)
    # once, though two evaluators read the file
    assert f"have no '{field}'" in only(errors(detection, EVERY), 'evaluator-fields')
    detection.val_evaluator.metric = 'bbox'
    if field == 'segmentation':
        assert not warnings(detection, ('train', 'val'))


@pytest.mark.parametrize('changes', [dict(image_id=4711), dict(category_id=99)])
def test_annotations_that_no_evaluation_reads(changes, detection, truth):
    content = json.loads(truth.read_text())
    content['categories'].append({'id': 99, 'name': 'moon'})
    wrong = {**content['annotations'][0], 'id': 0, 'segmentation': [[1, 1]], **changes}
    del wrong['iscrowd']
    content['annotations'].append(wrong)
    truth.write_text(json.dumps(content))
    without_masks(detection)
    found = [name for name, _ in warnings(detection, EVERY)]
    assert found == ['annotations-dropped'] * ('image_id' in changes)


def test_an_annotation_with_the_id_0(detection, truth, annotations):
    annotations['annotations'][0]['id'] = 0
    annotations.save()
    assert not warnings(detection, EVERY)  # of the training file, which nothing evaluates
    first = json.loads(truth.read_text())['annotations'][0]['id']
    change(truth, lambda annotation: annotation.update(id=annotation['id'] - first))
    only(warnings(detection, EVERY), 'annotation-id-0')


def test_evaluators_whose_types_are_classes(detection, segmentation, truth):
    """As in configs of MMEngine's Python style."""
    for cfg in (detection, segmentation):
        for key in ('val_evaluator', 'test_evaluator'):
            cfg[key].type = type_class(cfg[key].type, METRICS, scope(cfg))
    change(truth, lambda annotation: annotation.pop('iscrowd'))
    only(errors(detection, EVERY), 'evaluator-fields')
    segmentation.val_evaluator.ignore_index = 250
    only(warnings(segmentation, ('train', 'val')), 'evaluator-ignore-index')


def test_annotations_that_the_data_set_drops_count_as_missed(detection, truth):
    change(truth, lambda annotation: annotation.update(area=annotation['id'] % 3))
    text = only(warnings(detection, ('train', 'val')), 'annotations-dropped')
    assert text.endswith('val_evaluator reads them from the file, and AP counts them as missed')
    detection.val_evaluator.ann_file = None  # the annotations of the data set
    text = only(warnings(detection, ('train', 'val')), 'annotations-dropped')
    assert 'missed' not in text


SQUARE = [20, 20, 50, 20, 50, 50, 20, 50]


@pytest.mark.parametrize(
    ('outline', 'is_right'),
    [
        ([SQUARE], True),
        ([SQUARE, []], True),
        ([SQUARE, [1]], True),
        ([SQUARE, [1, 1]], True),
        ([SQUARE, [1, 1, 5, 5]], True),
        ({'size': [80, 96], 'counts': [80 * 20, 900, 80 * 76 - 900]}, True),
        ([], False),
        ([[1, 1], SQUARE], False),
        ([[1, 1, 5, 5], SQUARE], False),
        ([[1, 1]], False),
        ([[1, 1, 5, 5]], False),
        ([SQUARE[:-1]], False),
        (SQUARE, False),
    ],
)
def test_outlines_with_which_the_evaluation_fails(outline, is_right, detection, truth):
    change(truth, lambda annotation: annotation.update(segmentation=outline))
    without_masks(detection)
    coco = COCO(truth)
    try:
        areas = {int(coco.annToMask(annotation).sum()) for annotation in coco.anns.values()}
    except Exception:  # pycocotools raises exceptions of any type
        areas = set()
    assert (areas == {900}) == is_right
    if is_right:
        assert not warnings(detection, ('train', 'val'))
        return
    only(errors(detection, ('train', 'val')), 'evaluator-outlines')
    detection.val_evaluator.metric = 'bbox'
    assert not warnings(detection, ('train', 'val'))


def test_two_data_sets_and_the_file_of_one(detection, truth):
    first = detection.val_dataloader.dataset
    shutil.copy(truth, truth.parent / 'copy.json')
    second = {**first, 'ann_file': 'annotations/copy.json'}
    detection.val_dataloader.dataset = dict(type='ConcatDataset', datasets=[first, second])
    text = only(warnings(detection, ('val',)), 'evaluator-sets')
    assert text.startswith('val_evaluator: 2 data sets in val_dataloader: 4 images share')
    assert 'MultiDatasetsEvaluator' in text
    metric = detection.val_evaluator
    detection.val_evaluator = [metric, metric]
    assert [name for name, _ in warnings(detection, ('val',))] == ['evaluator-sets'] * 2
    detection.val_evaluator = dict(
        type='MultiDatasetsEvaluator', metrics=[metric, metric], dataset_prefixes=['a', 'b']
    )
    assert not warnings(detection, ('val',))


def test_more_objects_than_the_model_returns_or_ap_counts(detection, truth):
    """The first image has 120 objects of one class, and 120 of another."""
    content = json.loads(truth.read_text())
    first = content['annotations'][0]
    content['annotations'] = []
    for number in range(240):
        box = [number % 60, number // 60, 20, 20]
        label = 1 + number % 2
        entry = dict(first, id=number + 1, bbox=box, category_id=label, iscrowd=0)
        content['annotations'].append(entry)
    truth.write_text(json.dumps(content))
    model = detection.model
    model.test_cfg.rpn.max_per_img = 240
    model.test_cfg.rcnn.max_per_img = 100
    model.train_cfg.rpn_proposal.max_per_img = 10  # not read in an evaluation
    found = [text for name, text in warnings(detection, ('val',)) if name == 'object-limits']
    assert found == [
        'val_dataloader: 1 of 4 images have more than 100 objects (most: 240), which is all that '
        'the model finds: raise model.test_cfg.rcnn.max_per_img',
        'val_evaluator: 1 of 4 images have more than 100 objects (most: 120) of one class, which '
        "is all that COCO's mAP counts; mAP_50 and mAP_75 count 1000",
    ]
    model.test_cfg.rcnn.max_per_img = 300
    model.num_queries = 239  # one object of 240 is less than a hundredth of them
    detection.val_evaluator.proposal_nums = (100, 300)
    text = only(warnings(detection, ('val',)), 'object-limits')
    assert text.endswith('mAP_75 count 300')
    model.num_queries = 200
    assert len(warnings(detection, ('val',))) == 2


def test_more_objects_than_training_proposes(detection):
    assert not warnings(detection, ('train', 'val'))
    detection.model.train_cfg.rpn_proposal.max_per_img = 1
    text = only(warnings(detection, ('train', 'val')), 'object-limits')
    assert text.startswith('train_dataloader: ')
    assert text.endswith('raise model.train_cfg.rpn_proposal.max_per_img')


def test_boxes_of_the_truth_that_are_resized(detection, truth):
    """As in a pipeline that is copied from training; VOCMetric reads the boxes of the samples."""
    metric = detection.val_evaluator
    dataset = detection.val_dataloader.dataset
    load, resize, annotations, pack = dataset.pipeline
    assert (resize.type, annotations.type) == ('Resize', 'LoadAnnotations')
    detection.val_evaluator = dict(type='VOCMetric', metric='mAP')
    assert not warnings(detection, ('val',))
    dataset.pipeline = [load, annotations, resize, pack]
    text = only(errors(detection, ('val',)), 'truth-resized')
    assert text.startswith('val_dataloader.dataset.pipeline: expected LoadAnnotations behind Res')
    detection.val_evaluator = [dict(type='mmdet.DumpDetResults', out_file_path='x.pkl'), metric]
    assert not warnings(detection, ('val',))  # neither compares with the boxes of the samples


def rotate(truth, images, step):
    """Rotate every second, third, … image of a file by a quarter, and leave its objects out."""
    content = json.loads(truth.read_text())
    for entry in content['images'][step - 1 :: step]:
        path = images / entry['file_name']
        Image.open(path).rotate(90, expand=True).save(path)
        entry.update(width=entry['height'], height=entry['width'])
        others = [one for one in content['annotations'] if one['image_id'] != entry['id']]
        content['annotations'] = others
    truth.write_text(json.dumps(content))


def test_images_of_unequal_sizes_share_a_batch(detection, truth):
    detection.val_dataloader.batch_size = 4
    assert not warnings(detection, ('val',))
    rotate(truth, truth.parent.parent / 'val2017', 4)
    text = only(warnings(detection, ('val',)), 'evaluation-batch')
    assert text.startswith('val_dataloader.batch_size: 4 images of unequal sizes (')
    detection.val_dataloader.batch_size = 1
    assert not warnings(detection, ('val',))


def test_images_of_two_sizes_take_turns(detection, coco):
    """There are more of them than `TRIES`, and every second one is rotated."""
    path = coco / 'annotations' / 'instances_train2017.json'
    dataset = detection.val_dataloader.dataset
    dataset.ann_file = str(path)
    dataset.data_prefix.img = str(coco / 'train2017')
    detection.val_evaluator.ann_file = str(path)
    detection.val_dataloader.batch_size = 2
    rotate(path, coco / 'train2017', 2)
    assert 'evaluation-batch' in [name for name, _ in warnings(detection, ('val',))]
    (val,) = check_data(detection, ('train',), measured=('val',)).measured
    assert val.images == 12
    assert len(set(val.loaded.sizes)) == 2


def test_run_lengths_that_only_the_evaluation_reads(detection, truth):
    """Their overlap with every prediction would be -1."""
    mask = {'counts': '0P`7', 'size': [96, 80]}
    change(truth, lambda annotation: annotation.update(segmentation=mask))
    without_masks(detection)
    only(errors(detection, ('val',)), 'evaluator-outlines')
    detection.val_evaluator.metric = 'bbox'
    assert not warnings(detection, ('val',))


def merged(detection, truth, train):
    """Evaluate training and validation data together by one file of all their images."""
    parts = [json.loads(path.read_text()) for path in (truth, train)]
    for number, part in enumerate(parts):
        for image in part['images']:
            image['id'] += 1000 * number
        for annotation in part['annotations']:
            annotation['image_id'] += 1000 * number
            annotation['id'] += 1000 * number
    for path, part in zip((truth, train), parts, strict=True):
        path.write_text(json.dumps(part))
    path = truth.parent / 'both.json'
    for key in ('images', 'annotations'):
        parts[0][key] += parts[1][key]
    path.write_text(json.dumps(parts[0]))
    first = detection.val_dataloader.dataset
    second = {
        **first,
        'ann_file': f'annotations/{train.name}',
        'data_prefix': dict(img='train2017/'),
    }
    second['indices'] = None
    detection.val_dataloader.dataset = dict(type='ConcatDataset', datasets=[first, second])
    detection.val_evaluator.ann_file = str(path)
    return path


def test_one_file_of_all_data_sets(detection, truth, annotations):
    path = merged(detection, truth, annotations.path)
    assert not warnings(detection, ('val',))
    change(path, lambda annotation: annotation.pop('area'))  # and it is checked like others
    only(errors(detection, ('val',)), 'evaluator-fields')
    change(path, lambda annotation: annotation.update(bbox=[1, 1, 3, 3]))
    names = [name for name, _ in warnings(detection, ('val',))]
    assert names == ['evaluator-file', 'evaluator-sets']


def test_a_copy_of_the_file(detection, truth):
    copy = shutil.copy(truth, truth.parent / 'copy.json')
    detection.val_evaluator.ann_file = str(copy)
    assert not warnings(detection, ('val',))
    change(copy, lambda annotation: annotation.update(bbox=[1, 1, 3, 3]))
    only(warnings(detection, ('val',)), 'evaluator-file')
