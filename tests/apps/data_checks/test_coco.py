"""Problems and warnings of data sets in COCO layout, on generated data with one error each."""

import json

import numpy as np
import pytest
from PIL import Image

from mmpola.apps.data_checks import check_data
from tests.helpers.refusals import assert_lines, problems

UNREADABLE = 'annotations that training cannot read'


def warnings(cfg, splits=('train',), **options):
    """Return the warnings that `check_data` gives."""
    return [line for report in check_data(cfg, splits, **options) for line in report.warnings]


def test_classes_of_another_data_set(detection, annotations):
    detection.train_dataloader.dataset.pop('metainfo')
    persons = '(80): person, bicycle, car, motorcycle, airplane and 75 more'
    first, *others = problems(detection)
    assert_lines([first], (annotations.path, 'metainfo.classes', persons))
    assert 'model.roi_head.bbox_head.num_classes: expected 80' in others[-2]
    assert 'model.roi_head.mask_head.num_classes: expected 80' in others[-1]


def test_classes_in_another_order_than_the_file(detection, annotations):
    classes = ('square', 'circle', 'triangle', 'star', 'ring', 'cross')
    detection.train_dataloader.dataset.metainfo.classes = classes
    got = 'got square, circle, triangle, star, ring and 1 more'
    assert_lines(problems(detection), (annotations.path, 'metainfo.classes', got))


def test_two_categories_of_one_name(detection, annotations):
    annotations['categories'].append({**annotations['categories'][0], 'id': 99})
    annotations.save()
    (line,) = problems(detection)
    assert 'several categories of one name; merge them' in line
    assert line.endswith('(1): circle')


def test_annotations_that_mmdet_drops_because_of_their_ids(detection, annotations):
    category, image, *_ = annotations['annotations']
    category['category_id'] = 77
    image['image_id'] = 4711
    annotations.save()
    (line,) = warnings(detection)
    assert_lines([line], (annotations.path, 'drops', f'(2): {category["id"]}, {image["id"]}'))


def test_several_images_with_one_id(detection, annotations):
    first, second = annotations['images'][:2]
    second['id'] = first['id']
    annotations.save()
    assert '12 images have 11 different ids' in problems(detection)[0]


def as_corners(box):
    left, top, width, height = box
    return [left, top, left + width, top + height]


def test_boxes_of_corners_are_taken_for_what_they_are(detection, annotations):
    entries = annotations['annotations']
    entries[0]['bbox'] = [90, 0, 20, 20]  # one such box says nothing
    annotations.save()
    assert not warnings(detection)
    for entry in entries:
        entry['bbox'] = as_corners(entry['bbox'])
    annotations.save()
    assert_lines(warnings(detection), (annotations.path, 'boxes leave their image', ''))


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('bbox', [1, 2, 3]),
        ('bbox', [1, 2, '3', 4]),
        ('bbox', None),
        ('area', None),
        ('area', 'absent'),
    ],
)
def test_annotations_that_training_cannot_read(field, value, detection, annotations):
    entry = annotations['annotations'][1]
    entry[field] = value
    if value == 'absent':
        del entry[field]
    annotations.save()
    (line,) = problems(detection)
    assert_lines([line], (annotations.path, UNREADABLE, ')'))
    assert f'(1): id {entry["id"]} (' in line


@pytest.mark.parametrize(
    ('value', 'word'),
    [
        (None, 'with_mask=False'),
        ([], 'with_mask=False'),
        ('abc', 'samples that training cannot use'),
        ([1, 2, 30, 4, 5, 60], 'samples that training cannot use'),
        ([[1, 2, 'nan', 4, 5, 6]], 'not finite'),
        ([[1, 2, 'inf', 4, 5, 6]], 'not finite'),
        ([[1, 2, 1e9, 4, 5, 6]], 'farther away'),
        ([[1, -1e9, 3, 4, 5, 6]], 'farther away'),
        ({'counts': [80 * 96], 'size': [96, 80]}, 'samples that training cannot use'),
        ({'counts': 'abc', 'size': [80, 96]}, 'samples that training cannot use'),
    ],
)
def test_masks_that_training_cannot_use(value, word, detection, annotations):
    entry = annotations['annotations'][1]
    entry['segmentation'] = value
    text = json.dumps(annotations).replace('"inf"', '1e400').replace('"nan"', 'NaN')
    annotations.path.write_text(text)
    (line,) = problems(detection)
    assert word in line
    name = f'{entry["image_id"]:012}.jpg'
    assert f'(1): {annotations.path.parent.parent}/train2017/{name}' in line
    detection.train_dataloader.dataset.pipeline[1].with_mask = False  # masks are not read
    check_data(detection, ('train',))


def test_a_box_that_is_no_number(detection, annotations):
    annotations['annotations'][1]['bbox'][2] = 'inf'
    annotations.path.write_text(json.dumps(annotations).replace('"inf"', '1e400'))
    assert_lines(problems(detection), (annotations.path, 'finite', ')'))


def test_masks_of_annotations_that_mmdet_drops_are_not_needed(detection, annotations):
    flat, small, ignored, other, *_ = annotations['annotations']
    flat['area'] = 0
    small['bbox'][2] = 0.5
    ignored['ignore'] = True
    other['category_id'] = 99
    for entry in (flat, small, ignored, other):
        entry['segmentation'] = []
    annotations['categories'].append({'id': 99, 'name': 'other'})
    annotations.save()
    (report,) = check_data(detection, ('train',))
    assert report.labels == len(annotations['annotations']) - 4


@pytest.mark.parametrize('whole', [False, True])
def test_annotations_that_are_all_ignored(whole, detection, annotations):
    for entry in annotations['annotations']:
        entry['iscrowd'] = 1
    annotations.save()
    (line,) = problems(detection, whole=whole)
    count = len(annotations['annotations'])
    assert f'no annotations to train on: all {count} are ignored (iscrowd' in line


def test_run_lengths_that_are_ignored_without_poly2mask(detection, annotations, monkeypatch):
    for entry in annotations['annotations']:
        entry['segmentation'] = {'size': [80, 96], 'counts': [80 * 96 - 9, 9]}
    annotations.save()
    (report,) = check_data(detection, ('train',), whole=True)
    assert report.labels == len(annotations['annotations'])
    detection.train_dataloader.dataset.pipeline[1].poly2mask = False
    for whole in (False, True):
        (line,) = problems(detection, whole=whole)
        assert f'ignores all {len(annotations["annotations"])}; run lengths need' in line
    # A few samples without anything make the quick check load all.
    monkeypatch.setattr('mmpola.apps.data_checks.check.FEW', 1)
    annotations['annotations'][-1]['segmentation'] = [[1, 1, 9, 1, 9, 9]]
    annotations.save()
    (report,) = check_data(detection, ('train',))
    assert (report.counted, report.labels) == (12, 1)


def test_what_filter_cfg_leaves(detection, annotations):
    annotations['annotations'] = annotations['annotations'][:3]
    annotations.save()
    kept = len({entry['image_id'] for entry in annotations['annotations']})
    detection.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True, min_size=32)
    (report,) = check_data(detection, ('train',))
    assert (report.images, report.listed) == (kept, 12)
    detection.train_dataloader.dataset.filter_cfg.min_size = 100
    (line,) = problems(detection)
    assert 'filter_cfg leaves none of 12 images' in line
    assert "'min_size': 100" in line


def test_nothing_to_train_on(detection, annotations):
    detection.train_dataloader.dataset.pop('filter_cfg', None)
    annotations['annotations'] = []
    annotations.save()
    assert 'no annotations to train on' in problems(detection)[0]
    annotations['images'] = []
    annotations.save()
    assert_lines(problems(detection), (annotations.path, 'no images', ''))


@pytest.mark.parametrize('content', ['', '[', '[]', '{}', '{"images": 7}', '{"images": [[1]]}'])
def test_other_files(content, detection, annotations):
    annotations.path.write_text(content)
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: CocoDataset cannot read it (')


def test_images(detection, annotations, coco):
    folder = coco / 'train2017'
    absent, empty, text, turned, *_ = sorted(folder.iterdir())
    text.write_text('not an image')
    empty.write_bytes(b'')
    with Image.open(turned) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(turned, exif=exif)
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: ')
    assert f'(3): {empty} (empty file), {text} (' in line
    assert f'{turned} (80 x 96 pixels, but annotated as 96 x 80)' in line
    absent.unlink()
    assert_lines(problems(detection), (annotations.path, 'do not exist', f'(1): {absent}'))


def test_values_of_16_bit_images_that_the_loader_loses(detection, annotations, coco):
    for image in annotations['images']:
        path = coco / 'train2017' / image['file_name']
        image['file_name'] = path.with_suffix('.png').name
        values = np.asarray(Image.open(path).convert('L')).astype(np.uint16) * 16
        Image.fromarray(values).save(path.with_suffix('.png'))
    annotations.save()
    for whole in (False, True):
        (line,) = warnings(detection, whole=whole)
        assert 'the largest value of the first 16-bit images (' in line
        assert 'of 255 as loaded' in line


def test_channels_that_the_backbone_does_not_read(detection):
    detection.model.backbone.in_channels = 4
    (line,) = warnings(detection)
    assert 'expected 4 channels (model.backbone.in_channels), got 3' in line
