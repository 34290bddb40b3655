"""Pascal VOC's format, read by mmdet's XMLDataset: the published BCCD, and a data set of three."""

from xml.etree import ElementTree

import pytest
from mmengine.config import Config
from PIL import Image

from mmpola.apps.data_checks import check_data
from tests.helpers.refusals import problems

BCCD = {'train': (205, 2805), 'val': (87, 1138), 'test': (72, 945)}
"""Images and boxes of the published splits."""


def with_voc(cfg, root, classes, splits=('train', 'val', 'test')):
    """Let a detector of boxes train on data in Pascal VOC's format."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True),
        dict(type='Resize', scale=(160, 120), keep_ratio=True),
        dict(type='PackDetInputs'),
    ]
    for split in splits:
        cfg[f'{split}_dataloader'].dataset = dict(
            type='XMLDataset',
            data_root=str(root),
            ann_file=f'ImageSets/Main/{split}.txt',
            data_prefix=dict(sub_data_root=''),
            metainfo=dict(classes=classes),
            test_mode=split != 'train',
            pipeline=pipeline,
        )
        cfg[f'{split}_evaluator'] = dict(type='VOCMetric', metric='mAP')
    cfg.model.roi_head.bbox_head.num_classes = len(classes)
    cfg.model.roi_head.mask_head = None
    return cfg


@pytest.fixture
def bccd(tiny_config, real_data):
    return with_voc(Config.fromfile(tiny_config), real_data / 'bccd', ('RBC', 'WBC', 'Platelets'))


@pytest.mark.real_data
@pytest.mark.parametrize('whole', [False, True])
def test_counts_of_the_published_splits(whole, bccd):
    reports = check_data(bccd, whole=whole)
    assert {report.splits[0]: (report.images, report.labels) for report in reports} == BCCD
    (line,) = [line for report in reports for line in report.warnings]
    assert 'boxes without width or height' in line
    assert line.endswith('BloodImage_00343.jpg (180, 328, 180, 328)')
    assert [report.numbers[2] for report in reports] == [209, 83, 69]  # platelets


@pytest.mark.real_data
def test_boxes_that_training_leaves_out(bccd):
    bccd.train_dataloader.dataset.filter_cfg = dict(bbox_min_size=1)
    (report,) = check_data(bccd, ('train',))
    assert (report.labels, report.ignored, report.warnings) == (2804, 1, [])


@pytest.mark.real_data
def test_class_names_in_another_case(bccd):
    for split in BCCD:
        bccd[f'{split}_dataloader'].dataset.metainfo.classes = ('rbc', 'wbc', 'platelets')
    (line,) = problems(bccd)
    assert 'no annotations to train on: none of them is of rbc, wbc, platelets' in line
    assert line.endswith('the annotations have Platelets, RBC, WBC')
    bccd.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True)
    (line,) = problems(bccd)
    assert 'filter_cfg leaves none of 205 images' in line
    assert line.endswith('the annotations have Platelets, RBC, WBC')


@pytest.mark.real_data
def test_one_class_name_in_another_case(bccd):
    for split in BCCD:
        bccd[f'{split}_dataloader'].dataset.metainfo.classes = ('RBC', 'WBC', 'platelets')
    (report,) = check_data(bccd, ('train',))
    (line,) = [line for line in report.warnings if 'classes' in line]
    assert 'classes without instances; the annotations have Platelets, RBC, WBC (1)' in line
    assert line.endswith('platelets')


def write_voc(root, difficult):
    """Write three images with a box each."""
    for folder in ('ImageSets/Main', 'Annotations', 'JPEGImages'):
        (root / folder).mkdir(parents=True)
    (root / 'ImageSets/Main/train.txt').write_text('a\nb\nc\n')
    for name in 'abc':
        Image.new('RGB', (60, 40)).save(root / f'JPEGImages/{name}.jpg')
        top = ElementTree.Element('annotation')
        size = ElementTree.SubElement(top, 'size')
        thing = ElementTree.SubElement(top, 'object')
        box = ElementTree.SubElement(thing, 'bndbox')
        for parent, texts in (
            (size, {'width': 60, 'height': 40}),
            (thing, {'name': 'cat', 'difficult': difficult}),
            (box, {'xmin': 3, 'ymin': 3, 'xmax': 33, 'ymax': 23}),
        ):
            for key, value in texts.items():
                ElementTree.SubElement(parent, key).text = str(value)
        ElementTree.ElementTree(top).write(root / f'Annotations/{name}.xml')


def test_objects_that_are_all_difficult(tiny_config, tmp_path):
    write_voc(tmp_path / 'voc', difficult=1)
    cfg = with_voc(Config.fromfile(tiny_config), tmp_path / 'voc', ('cat',), ('train',))
    (line,) = problems(cfg)
    assert 'all 3 are ignored (iscrowd, ignore or difficult is 1)' in line


def test_a_class_that_is_named_twice(tiny_config, tmp_path):
    write_voc(tmp_path / 'voc', difficult=0)
    cfg = with_voc(Config.fromfile(tiny_config), tmp_path / 'voc', ('cat', 'cat'), ('train',))
    (line,) = problems(cfg)
    assert line.endswith('expected each category once, got 2 names for 1 categories')


def test_an_image_that_does_not_exist(tiny_config, tmp_path):
    root = tmp_path / 'voc'
    write_voc(root, difficult=0)
    cfg = with_voc(Config.fromfile(tiny_config), root, ('cat',), ('train',))
    assert check_data(cfg, ('train',))[0].labels == 3
    (root / 'JPEGImages/b.jpg').rename(root / 'JPEGImages/b.JPG')
    (line,) = problems(cfg)
    assert f'do not exist (1): {root}/JPEGImages/b.jpg' in line
