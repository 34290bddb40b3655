"""Pascal VOC's format, read by mmdet's XMLDataset: the published BCCD, and a data set of three."""

from xml.etree import ElementTree

import pytest
from mmengine.config import Config
from PIL import Image

from mmpola.openmmlab.checks import check_data
from tests.helpers.refusals import errors, only, warnings

BCCD = {'train': (205, 2805), 'val': (87, 1138), 'test': (72, 945)}
"""Images and boxes of the published splits."""


def with_voc(cfg, root, classes, splits=('train', 'val', 'test')):
    """Let a detector of boxes train on data in Pascal VOC's format."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(160, 120), keep_ratio=True),
        dict(type='PackDetInputs'),
    ]
    for split in splits:
        place = 1 if split == 'train' else 2  # VOCMetric reads boxes in pixels of the file
        steps = pipeline.copy()
        steps.insert(place, dict(type='LoadAnnotations', with_bbox=True))
        cfg[f'{split}_dataloader'].dataset = dict(
            type='XMLDataset',
            data_root=str(root),
            ann_file=f'ImageSets/Main/{split}.txt',
            data_prefix=dict(sub_data_root=''),
            metainfo=dict(classes=classes),
            test_mode=split != 'train',
            pipeline=steps,
        )
        cfg[f'{split}_evaluator'] = dict(type='VOCMetric', metric='mAP')
    cfg.model.roi_head.bbox_head.num_classes = len(classes)
    cfg.model.roi_head.mask_head = None
    cfg.param_scheduler = []  # that of the base is for a longer run
    return cfg


@pytest.fixture
def bccd(tiny_config, real_data):
    return with_voc(Config.fromfile(tiny_config), real_data / 'bccd', ('RBC', 'WBC', 'Platelets'))


@pytest.mark.real_data
@pytest.mark.parametrize('whole', [False, True])
def test_counts_of_the_published_splits(whole, bccd):
    sets, found, *_ = check_data(bccd, whole=whole)
    assert {data.splits[0]: (data.images, data.labels.total) for data in sets} == BCCD
    (one,) = found
    assert one.name == 'boxes-empty'
    assert one.text.endswith('BloodImage_00343.jpg (180, 328, 180, 328)')
    assert [data.labels.numbers[2] for data in sets] == [209, 83, 69]  # platelets


@pytest.mark.real_data
def test_boxes_that_training_leaves_out(bccd):
    bccd.train_dataloader.dataset.filter_cfg = dict(bbox_min_size=1)
    (data,), found, *_ = check_data(bccd, ('train',))
    assert (data.labels.total, data.labels.ignored, found) == (2804, 1, [])


@pytest.mark.real_data
def test_class_names_in_another_case(bccd):
    for split in BCCD:
        bccd[f'{split}_dataloader'].dataset.metainfo.classes = ('rbc', 'wbc', 'platelets')
    text = only(errors(bccd), 'no-objects')
    assert text.endswith('the annotations have Platelets, RBC, WBC')
    bccd.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True)
    text = only(errors(bccd), 'no-images')
    assert text.endswith('the annotations have Platelets, RBC, WBC')


@pytest.mark.real_data
def test_one_class_name_in_another_case(bccd):
    for split in BCCD:
        bccd[f'{split}_dataloader'].dataset.metainfo.classes = ('RBC', 'WBC', 'platelets')
    (text,) = [one.text for one in check_data(bccd).found if one.name == 'absent-classes']
    assert text.endswith('the annotations have Platelets (1): platelets')


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
    assert 'all 3 are ignored' in only(errors(cfg), 'no-objects')


def test_a_class_that_is_named_twice(tiny_config, tmp_path):
    write_voc(tmp_path / 'voc', difficult=0)
    cfg = with_voc(Config.fromfile(tiny_config), tmp_path / 'voc', ('cat', 'cat'), ('train',))
    assert only(errors(cfg), 'classes-twice').endswith('(1): cat')


def test_an_image_that_does_not_exist(tiny_config, tmp_path):
    root = tmp_path / 'voc'
    write_voc(root, difficult=0)
    cfg = with_voc(Config.fromfile(tiny_config), root, ('cat',), ('train',))
    assert check_data(cfg, ('train',)).sets[0].labels.total == 3
    (root / 'JPEGImages/b.jpg').rename(root / 'JPEGImages/b.JPG')
    assert only(errors(cfg), 'images-missing').endswith(f'(1): {root}/JPEGImages/b.jpg')


@pytest.fixture
def voc(tiny_config, tmp_path):
    """A data set of three images, and a config that trains on it."""
    write_voc(tmp_path / 'voc', difficult=0)
    cfg = with_voc(Config.fromfile(tiny_config), tmp_path / 'voc', ('cat', 'dog'), ('train',))
    return tmp_path / 'voc', cfg


def change(root, old, new, names='abc'):
    """Replace text in the annotations of images."""
    for name in names:
        path = root / f'Annotations/{name}.xml'
        path.write_text(path.read_text().replace(old, new))


def test_a_name_without_a_comma_that_mmdet_cannot_read(voc):
    _, cfg = voc
    cfg.train_dataloader.dataset.metainfo = dict(classes='cat')
    names = [name for name, _ in errors(cfg, ('train',))]
    assert names == ['classes-comma', 'unreadable']


@pytest.mark.parametrize(
    ('old', 'new', 'value'),
    [
        ('<difficult>0', '<difficult>Unspecified', "'Unspecified'"),
        ('<xmin>3', '<xmin>', "'NoneType'"),
        ('<width>60', '<width>60.0', "'60.0'"),
    ],
)
def test_fields_that_are_no_numbers(old, new, value, voc):
    root, cfg = voc
    change(root, old, new, names='bc')
    text = only(errors(cfg), 'unreadable')
    assert text.startswith(f'{root}/Annotations/b.xml: XMLDataset cannot read it (')
    assert value in text


def test_a_blank_behind_the_name_of_a_class(voc):
    root, cfg = voc
    change(root, '<name>cat', '<name>dog', names='ab')
    change(root, '<name>dog', '<name>cat', names='b')
    assert not warnings(cfg)
    change(root, 'cat<', 'cat <', names='c')
    checked = check_data(cfg, ('train',))
    assert ', 1 object of other classes (cat ), ' in checked.lines()[0]
    (one,) = checked.found
    assert one.name == 'classes-spelling'
    assert f'first in {root}/Annotations/c.xml' in one.text


@pytest.mark.parametrize(
    'text',
    [
        '<html><body>Moved</body></html>',
        '<annotation xmlns="http://example.org/voc"><object><name>cat</name></object></annotation>',
        '<annotation><objects><object><name>cat</name></object></objects></annotation>',
    ],
)
def test_a_file_whose_objects_are_not_found(text, voc):
    """mmdet reads it as a photograph without objects."""
    root, cfg = voc
    path = root / 'Annotations' / 'b.xml'
    path.write_text(text)
    assert only(errors(cfg), 'xml-objects').endswith(f'(1): {path}')
