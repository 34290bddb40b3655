"""Problems and warnings of data sets in COCO layout, on generated data with one error each."""

import json

import pytest
from PIL import Image

from mmpola.apps.data_checks import check_data
from tests.helpers.refusals import assert_lines, problems

UNREADABLE = 'annotations that training cannot read'


def test_classes_of_another_data_set(detection, annotations):
    detection.train_dataloader.dataset.pop('metainfo')
    persons = '(80): person, bicycle, car, motorcycle, airplane and 75 more'
    assert_lines(
        problems(detection),
        (annotations.path, 'metainfo.classes', persons),
        ('model.roi_head.bbox_head.num_classes: expected 80', 'train_dataloader', 'got 6'),
        ('model.roi_head.mask_head.num_classes: expected 80', 'train_dataloader', 'got 6'),
    )


def test_classes_in_another_order_than_the_file(detection, annotations):
    classes = ('square', 'circle', 'triangle', 'star', 'ring', 'cross')
    detection.train_dataloader.dataset.metainfo.classes = classes
    got = 'got square, circle, triangle, star, ring and 1 more'
    assert_lines(problems(detection), (annotations.path, 'metainfo.classes', got))


def test_ids(detection, annotations):
    category, image, *_ = annotations['annotations']
    category['category_id'] = 77
    image['image_id'] = 4711
    annotations.save()
    shown = f'(2): id {category["id"]} (KeyError: 77), id {image["id"]} (KeyError: 4711)'
    assert_lines(problems(detection), (annotations.path, UNREADABLE, shown))


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
    (report,) = check_data(detection, ('train',))
    assert not report.warnings
    for entry in entries:
        entry['bbox'] = as_corners(entry['bbox'])
    annotations.save()
    (report,) = check_data(detection, ('train',))
    assert_lines(report.warnings, (annotations.path, f'of {len(entries)} boxes', ''))


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('bbox', [1, 2, 'inf', 4]),
        ('bbox', [1, 2, 3]),
        ('bbox', [1, 2, '3', 4]),
        ('bbox', None),
        ('area', 'nan'),
        ('area', '10**400'),
        ('area', None),
        ('segmentation', None),
        ('segmentation', []),
        ('segmentation', 'abc'),
        ('segmentation', [1, 2, 30, 4, 5, 60]),
        ('segmentation', [[1, 2, 'nan', 4, 5, 6]]),
        ('segmentation', [[1, 2, 'inf', 4, 5, 6]]),
        ('segmentation', [[1, 2, 1e9, 4, 5, 6]]),
        ('segmentation', [[1, -1e9, 3, 4, 5, 6]]),
        ('segmentation', {'counts': [80 * 96]}),
        ('segmentation', {'counts': [80 * 96], 'size': [96, 80]}),
    ],
)
def test_annotations_that_training_cannot_read(field, value, detection, annotations):
    entry = annotations['annotations'][1]
    entry[field] = value
    text = json.dumps(annotations)
    for name, number in (('inf', '1e400'), ('nan', 'NaN'), ('10**400', '1' + 400 * '0')):
        text = text.replace(f'"{name}"', number)
    annotations.path.write_text(text)
    (line,) = problems(detection)
    assert_lines([line], (annotations.path, UNREADABLE, ')'))
    assert f'(1): id {entry["id"]} (' in line
    if field == 'segmentation':  # which is not read for boxes alone
        detection.train_dataloader.dataset.pipeline[1].with_mask = False
        check_data(detection, ('train',))


def test_run_lengths_are_decoded_in_the_whole_check(detection, annotations):
    good, long, text, *_ = annotations['annotations']
    for entry, counts in ((good, [80 * 96 - 9, 9]), (long, [80 * 96, 9]), (text, 'abc')):
        entry['segmentation'] = {'size': [80, 96], 'counts': counts}
    annotations.save()
    check_data(detection, ('train',))
    (line,) = problems(detection, whole=True)
    assert f'(2): id {long["id"]} (ValueError' in line
    assert f'id {text["id"]} (ValueError' in line


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
    assert report.annotations == len(annotations['annotations']) - 4


def test_polygons_that_mmdet_drops_are_allowed(detection, annotations):
    annotations['annotations'][0]['segmentation'] = [[], [1, 2, 3, 4]]
    annotations.save()
    check_data(detection, ('train',))


def test_other_data_sets_with_annotations_in_json_are_not_checked(detection, annotations):
    annotations.path.write_text('[]')
    detection.train_dataloader.dataset.type = 'CocoPanopticDataset'
    (report,) = check_data(detection, ('train',))
    assert not report.is_counted


def test_nothing_to_train_on(detection, annotations):
    annotations['annotations'] = []
    annotations.save()
    assert_lines(problems(detection), (annotations.path, 'no annotations', ''))
    annotations['images'] = []
    annotations.save()
    assert_lines(problems(detection), (annotations.path, 'no images', ''))


@pytest.mark.parametrize('content', ['', '[', '[]', '{}', '{"images": 7}', '{"images": [[1]]}'])
def test_other_files(content, detection, annotations):
    annotations.path.write_text(content)
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: not an annotation file')


def test_images(detection, annotations, coco):
    folder = coco / 'train2017'
    absent, empty, truncated, turned, *_ = sorted(folder.iterdir())
    truncated.write_bytes(truncated.read_bytes()[:1000])
    empty.write_bytes(b'')
    with Image.open(turned) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(turned, exif=exif)
    check_data(detection, ('train',))  # the fast part opens no image
    (line,) = problems(detection, whole=True)
    assert line.startswith(f'{folder}: ')
    assert f'(3): {empty.name} (empty file), {truncated.name} (OSError: ' in line
    assert f'{turned.name} ((80, 96), not 96 x 80)' in line
    absent.unlink()
    assert_lines(problems(detection), (annotations.path, str(folder), f'(1): {absent.name}'))
