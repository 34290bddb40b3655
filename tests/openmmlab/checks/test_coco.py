"""Problems and warnings of data sets in COCO layout, on generated data with one error each."""

import json
import unicodedata

import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from PIL import Image

from mmpola.messages import OTHER_FORMATS, listed
from mmpola.openmmlab.checks import check_data
from tests.helpers.refusals import errors, only, warnings


def test_classes_of_another_data_set(detection, annotations):
    detection.train_dataloader.dataset.pop('metainfo')
    (name, text), *others = errors(detection)
    assert name == 'classes-absent'
    assert text.startswith(str(annotations.path))
    assert text.endswith('(80): person, bicycle, car, motorcycle, airplane and 75 more')
    assert [name for name, _ in others] == ['no-objects', 'class-count', 'class-count']
    for (_, text), head in zip(others[1:], ('bbox_head', 'mask_head'), strict=True):
        assert text.startswith(f'model.roi_head.{head}.num_classes: expected 80')


@pytest.mark.parametrize(
    ('names', 'has'), [([], 'has no categories'), (['', 'disc'], "has the categories '', disc")]
)
def test_a_file_without_names_of_classes(names, has, detection, annotations):
    """As VIA writes it where an attribute is no list of options, or an option has no name."""
    annotations['categories'] = [{'id': i, 'name': name} for i, name in enumerate(names, 1)]
    annotations['annotations'] = []
    annotations.save()
    text = dict(errors(detection))['classes-absent']
    assert f': the file {has}; set metainfo.classes, which has others (6): circle' in text


def test_classes_in_another_order_than_the_file(detection, annotations):
    classes = ('square', 'circle', 'triangle', 'star', 'ring', 'cross')
    detection.train_dataloader.dataset.metainfo.classes = classes
    text = only(errors(detection), 'classes-order')
    assert text.endswith('got square, circle, triangle, star, ring and 1 more')


def test_objects_of_one_class_only(detection, annotations):
    first, second, *_ = annotations['categories']
    for entry in annotations['annotations']:
        entry['category_id'] = first['id']
    annotations.save()
    text = only(warnings(detection), 'one-class')
    assert f'expected labels of at least 2 classes, got {first["name"]} of 6 ' in text
    annotations['annotations'][0]['category_id'] = second['id']
    annotations.save()
    assert 'one-class' not in dict(warnings(detection))


def test_two_categories_of_one_name(detection, annotations):
    annotations['categories'].append({**annotations['categories'][0], 'id': 99})
    annotations.save()
    assert only(errors(detection), 'classes-twice').endswith('(1): circle')


def test_annotations_that_mmdet_drops_because_of_their_ids(detection, annotations):
    category, image, *_ = annotations['annotations']
    category['category_id'] = 77
    image['image_id'] = 4711
    annotations.save()
    text = only(warnings(detection), 'annotations-dropped')
    count = len(annotations['annotations'])
    assert f': 2 of {count} annotations are dropped (in 000000' in text
    assert text.endswith(f'; no such image: 1, id {image["id"]})')


def test_several_images_with_one_id(detection, annotations):
    first, second = annotations['images'][:2]
    second['id'] = first['id']
    annotations.save()
    assert '12 images have 11 different ids' in only(errors(detection), 'image-ids')


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
    only(warnings(detection), 'boxes-outside')


@pytest.mark.parametrize(
    ('field', 'value', 'reason'),
    [
        ('bbox', [1, 2, 3], 'ValueError: not enough values to unpack (expected 4, got 3)'),
        ('bbox', None, 'TypeError: cannot unpack non-iterable NoneType object'),
        ('area', None, "TypeError: '<=' not supported"),
        ('area', 'absent', "no 'area'; write width times height of the box"),
    ],
)
def test_annotations_that_training_cannot_read(field, value, reason, detection, annotations):
    """Each reason is told once."""
    entries = annotations['annotations'][1:3]
    for entry in entries:
        entry[field] = value
        if value == 'absent':
            del entry[field]
    annotations.save()
    text = only(errors(detection), 'unreadable')
    assert text.startswith(f'{annotations.path}: training cannot read entries, {reason}')
    assert text.endswith(f' (2): id {entries[0]["id"]}, id {entries[1]["id"]}')


@pytest.mark.parametrize(
    ('part', 'field', 'value', 'got'),
    [
        ('annotations', 'bbox', [1, 2, '3', 4], "'3'"),
        ('annotations', 'bbox', ['1', '2', '3', '4'], "'1'"),
        ('annotations', 'area', '12', "'12'"),
        ('annotations', 'iscrowd', '0', "'0'"),
        ('annotations', 'ignore', '0', "'0'"),
        ('annotations', 'category_id', '1', "'1'"),
        ('annotations', 'image_id', '1', "'1'"),
        ('categories', 'id', '1', "'1'"),
        ('images', 'id', '1', "'1'"),
        ('images', 'width', '96', "'96'"),
        ('images', 'height', '80', "'80'"),
    ],
)
def test_numbers_that_are_text(part, field, value, got, detection, annotations):
    entry = annotations[part][0]
    entry[field] = value
    annotations.save()
    text = only(errors(detection), 'numbers-as-text')
    assert f'{part}: {field}: expected numbers, got text, {got}; write numbers' in text
    assert text.endswith(f' id (1): {entry["id"]}')


def test_ids_that_are_all_text(detection, annotations):
    for category in annotations['categories']:
        category['id'] = str(category['id'])
    for entry in annotations['annotations']:
        entry['category_id'] = str(entry['category_id'])
    annotations.save()
    (data,), found, *_ = check_data(detection, ('train',))
    assert not found
    assert data.labels.total == len(annotations['annotations'])


@pytest.mark.parametrize(
    ('value', 'check'),
    [
        (None, 'masks-missing'),
        ([], 'masks-missing'),
        ('abc', 'samples-unreadable'),
        ([[1, 2, 30, 4, 5, '60']], 'outlines-text'),
        ([['1', '2', '30', '4', '5', '60']], 'outlines-text'),
        ([1, 2, 30, 4, 5, 60], 'outlines-flat'),
        ([[1, 2, 'nan', 4, 5, 6]], 'outlines-far'),
        ([[1, 2, 'inf', 4, 5, 6]], 'outlines-far'),
        ([[1, 2, 1e9, 4, 5, 6]], 'outlines-far'),
        ([[1, -1e9, 3, 4, 5, 6]], 'outlines-far'),
        ({'counts': [80 * 96], 'size': [96, 80]}, 'run-lengths'),
        ({'counts': [80 * 96], 'size': [8_000_000, 8_000_000]}, 'run-lengths'),
        ({'counts': [80 * 96 + 1], 'size': [80, 96]}, 'run-lengths'),
        ({'counts': [80 * 96]}, 'run-lengths'),
        ({'counts': 'abc', 'size': [80, 96]}, 'samples-unreadable'),
    ],
)
def test_masks_that_training_cannot_use(value, check, detection, annotations):
    entry = annotations['annotations'][1]
    entry['segmentation'] = value
    text = json.dumps(annotations).replace('"inf"', '1e400').replace('"nan"', 'NaN')
    annotations.path.write_text(text)
    text = only(errors(detection), check)
    name = f'{entry["image_id"]:012}.jpg'
    assert f'(1): {annotations.path.parent.parent}/train2017/{name}' in text
    detection.train_dataloader.dataset.pipeline[1].with_mask = False  # masks are not read
    check_data(detection, ('train',))


def test_a_box_that_is_no_number(detection, annotations):
    annotations['annotations'][1]['bbox'][2] = 'inf'
    annotations.path.write_text(json.dumps(annotations).replace('"inf"', '1e400'))
    only(errors(detection), 'boxes-finite')


def test_masks_of_annotations_that_mmdet_drops_are_not_needed(detection, annotations):
    flat, small, ignored, other, *_ = annotations['annotations']
    flat['area'] = 0
    small['bbox'][2] = 0.5
    ignored['ignore'] = True
    other['category_id'] = 99
    for entry in (flat, small, ignored, other):
        entry['segmentation'] = []
    ignored['segmentation'] = other['segmentation'] = {'counts': [5], 'size': [1, 5]}
    annotations['categories'].append({'id': 99, 'name': 'other'})
    annotations.save()
    (data,) = check_data(detection, ('train',)).sets
    assert data.labels.total == len(annotations['annotations']) - 4


@pytest.mark.parametrize('whole', [False, True])
def test_annotations_that_are_all_ignored(whole, detection, annotations):
    for entry in annotations['annotations']:
        entry['iscrowd'] = 1
    annotations.save()
    text = only(errors(detection, whole=whole), 'no-objects')
    assert f'all {len(annotations["annotations"])} are ignored' in text


def test_run_lengths_that_are_ignored_without_poly2mask(detection, annotations, monkeypatch):
    for entry in annotations['annotations']:
        entry['segmentation'] = {'size': [80, 96], 'counts': [80 * 96 - 9, 9]}
    annotations.save()
    (data,) = check_data(detection, ('train',), whole=True).sets
    assert data.labels.total == len(annotations['annotations'])
    detection.train_dataloader.dataset.pipeline[1].poly2mask = False
    for whole in (False, True):
        text = only(errors(detection, whole=whole), 'objects-ignored')
        assert f'ignores all {len(annotations["annotations"])}' in text
    # A few samples without anything make the quick check load all.
    monkeypatch.setattr('mmpola.openmmlab.checks.samples.FEW', 1)
    annotations['annotations'][-1]['segmentation'] = [[1, 1, 9, 1, 9, 9]]
    annotations.save()
    (data,) = check_data(detection, ('train',)).sets
    assert (data.images_counted, data.labels.total) == (12, 1)


def test_what_filter_cfg_leaves(detection, annotations):
    annotations['annotations'] = annotations['annotations'][:3]
    annotations.save()
    kept = len({entry['image_id'] for entry in annotations['annotations']})
    detection.train_dataloader.dataset.filter_cfg = dict(filter_empty_gt=True, min_size=32)
    (data,) = check_data(detection, ('train',)).sets
    assert (data.images, data.images_before_filters) == (kept, 12)
    detection.train_dataloader.dataset.filter_cfg.min_size = 100
    text = only(errors(detection), 'no-images')
    assert 'filter_cfg leaves none of 12 images' in text
    assert "'min_size': 100" in text


def test_nothing_to_train_on(detection, annotations):
    detection.train_dataloader.dataset.pop('filter_cfg', None)
    annotations['annotations'] = []
    annotations.save()
    only(errors(detection), 'no-objects')
    annotations['images'] = []
    annotations.save()
    only(errors(detection), 'no-images')


@pytest.mark.parametrize('content', ['', '[', '[]', '{}', '{"images": 7}', '{"images": [[1]]}'])
def test_other_files(content, detection, annotations):
    annotations.path.write_text(content)
    text = only(errors(detection), 'unreadable')
    assert text.startswith(f'{annotations.path}: CocoDataset cannot read it (')
    is_json_of_others = content in ('[]', '{}')
    assert text.endswith("expected a file in COCO's format. " + OTHER_FORMATS) == is_json_of_others


def test_an_image_without_a_height(detection, annotations):
    image = annotations['images'][1]
    del image['height']
    annotations.save()
    text = only(errors(detection), 'unreadable')
    name = image['file_name']
    remedy = "no 'height'; write the image's height in pixels"
    assert text.endswith(f': training cannot read entries, {remedy} (1): image {name}')


def test_images(detection, annotations, coco):
    folder = coco / 'train2017'
    absent, empty, text, turned, *_ = sorted(folder.iterdir())
    text.write_text('not an image')
    empty.write_bytes(b'')
    with Image.open(turned) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(turned, exif=exif)
    (first, unreadable), (second, size) = errors(detection)
    assert (first, second) == ('samples-unreadable', 'image-size')
    assert f'(2): {empty} (empty file), {text} (' in unreadable
    assert size.endswith(f'(1): {turned} (80 x 96 pixels, annotated as 96 x 80)')
    absent.unlink()
    assert only(errors(detection), 'images-missing').endswith(f'(1): {absent}')


def test_values_of_16_bit_images_that_the_loader_loses(detection, annotations, coco):
    for image in annotations['images']:
        path = coco / 'train2017' / image['file_name']
        image['file_name'] = path.with_suffix('.png').name
        values = np.asarray(Image.open(path).convert('L')).astype(np.uint16) * 16
        Image.fromarray(values).save(path.with_suffix('.png'))
    annotations.save()
    for whole in (False, True):
        only(warnings(detection, whole=whole), 'sixteen-bits')


def test_channels_that_the_backbone_does_not_read(detection):
    detection.model.backbone.in_channels = 4
    assert 'expected 4 channels' in only(warnings(detection), 'channels')


@pytest.mark.parametrize(
    'change',
    [
        dict(area=0),
        dict(bbox=[10, 10, 0.5, 20]),
        dict(bbox=[10, 10, -20, 20]),
        dict(bbox=[200, 10, 20, 20]),
        dict(bbox=[10, -30, 20, 20]),
        dict(bbox=['inf', 10, 20, 20]),
        dict(bbox=[0.2, 0.1, 0.5, 0.5]),
        dict(category_id=77),
        dict(ignore=1),
    ],
)
def test_annotations_that_are_dropped_are_counted(change, detection, annotations):
    entries = annotations['annotations']
    for entry in entries[:2]:
        entry.update(change)
    text = json.dumps(annotations).replace('"inf"', '1e400')
    annotations.path.write_text(text)
    (data,), ((name, _, text),), *_ = check_data(detection, ('train',))
    assert name == 'annotations-dropped'
    files = listed(dict.fromkeys(image_of(entry, annotations).name for entry in entries[:2]))
    assert f': 2 of {len(entries)} annotations are dropped (in {files}: with area 0 (write' in text
    assert data.labels.total == len(entries) - 2
    assert ', 2 dropped, ' in check_data(detection, ('train',)).lines()[0]


class EagerDataset(CocoDataset):
    """A data set of somebody's own, which reads its file at once."""

    def __init__(self, *args, lazy_init, **options):
        super().__init__(*args, **options)


def test_a_data_set_that_reads_its_file_at_once(detection, annotations):
    annotations['annotations'][0]['area'] = 0
    annotations.save()
    detection.train_dataloader.dataset.type = EagerDataset
    only(warnings(detection), 'annotations-dropped')
    annotations['annotations'][1]['bbox'] = None
    annotations.save()
    assert 'EagerDataset cannot read it (' in only(errors(detection), 'unreadable')


def test_all_annotations_are_dropped(detection, annotations):
    for entry in annotations['annotations']:
        entry['area'] = 0
    annotations.save()
    text = only(errors(detection), 'no-objects')
    count = len(annotations['annotations'])
    assert f': {count} of {count} are dropped (with area 0 (write width times height' in text


def test_objects_of_other_classes_are_counted(detection, annotations):
    categories = annotations['categories']
    categories.append({'id': 99, 'name': 'moon'})
    for entry in annotations['annotations'][:3]:
        entry['category_id'] = 99
    annotations.save()
    checked = check_data(detection, ('train',))
    assert not checked.found
    assert ', 3 objects of other classes (moon), ' in checked.lines()[0]
    categories[-1]['name'] = 'Circle '
    annotations.save()
    text = only(warnings(detection), 'classes-spelling')
    first = annotations['annotations'][0]['id']
    assert f"3 objects are left out, as their name is 'Circle ' (first in id {first})" in text


def exchanged(polygon):
    """Return a polygon with x and y exchanged."""
    return [value for x, y in zip(polygon[0::2], polygon[1::2], strict=True) for value in (y, x)]


def doubled(polygon):
    """Return a polygon in the pixels of an image of twice the size."""
    return [2 * value for value in polygon]


@pytest.mark.parametrize('change', [exchanged, doubled])
def test_outlines_that_do_not_fit_their_boxes(change, detection, annotations):
    for entry in annotations['annotations']:
        entry['segmentation'] = [change(polygon) for polygon in entry['segmentation']]
    annotations.save()
    only(warnings(detection), 'outlines-beside')
    detection.train_dataloader.dataset.pipeline[1].with_mask = False
    assert not warnings(detection)


SQUARE = [20, 20, 50, 20, 50, 50, 20, 50]


@pytest.mark.parametrize('polygons', [[[20, 20, 50, 50]], [SQUARE[:-1]], [SQUARE, SQUARE[:-1]]])
def test_outlines_of_too_few_points(polygons, detection, annotations):
    entry = annotations['annotations'][1]
    entry['segmentation'] = polygons
    entry['bbox'] = [20, 20, 30, 30]
    annotations.save()
    text = only(warnings(detection), 'outlines-short')
    assert text.endswith(f'(1): {image_of(entry, annotations)}')
    detection.train_dataloader.dataset.pipeline[1].with_mask = False
    assert not warnings(detection)


def image_of(entry, annotations):
    """Return the file of the image of an annotation."""
    (name,) = (one['file_name'] for one in annotations['images'] if one['id'] == entry['image_id'])
    return annotations.path.parent.parent / 'train2017' / name


@pytest.mark.parametrize('fragment', [[], [20], [20, 20], [20, 20, 21, 21]])
@pytest.mark.parametrize('place', [0, 1])
def test_fragments_beside_an_outline(fragment, place, detection, annotations):
    """As the search for contours leaves them: training reads the proper polygon."""
    entry = annotations['annotations'][1]
    entry['segmentation'] = [SQUARE]
    entry['segmentation'].insert(place, fragment)
    entry['bbox'] = [20, 20, 30, 30]
    annotations.save()
    (data,), found, *_ = check_data(detection, ('train',), whole=True)
    assert not found
    assert data.labels.ignored == 0


@pytest.mark.parametrize('name', [unicodedata.normalize('NFD', 'fünf.jpg'), 'FÜNF.JPG'])
def test_names_of_files_from_a_mac_or_a_camera(name, detection, annotations, coco):
    """They differ from the annotations in Unicode form or capitals."""
    first, second, *_ = annotations['images']
    folder = coco / 'train2017'
    (folder / first['file_name']).rename(folder / name)
    (folder / second['file_name']).unlink()
    first['file_name'] = unicodedata.normalize('NFC', 'fünf.jpg')
    annotations.save()
    text = only(errors(detection), 'images-missing')
    assert f'; there is {name}, the same in other capitals or in another Unicode form' in text
    assert ' (2): ' in text


def test_a_set_without_labels_beside_one_with(detection, annotations, coco):
    """As SoftTeacher trains: a part of the data has images only."""
    labelled = detection.train_dataloader.dataset
    unlabelled = json.loads(json.dumps(dict(annotations)))
    unlabelled['annotations'] = []
    (coco / 'annotations' / 'unlabelled.json').write_text(json.dumps(unlabelled))
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadEmptyAnnotations'),
        dict(
            type='MultiBranch',
            branch_field=['unsup_teacher'],
            unsup_teacher=[dict(type='PackDetInputs')],
        ),
    ]
    other = {**labelled, 'ann_file': 'annotations/unlabelled.json', 'pipeline': pipeline}
    other['filter_cfg'] = dict(filter_empty_gt=False)
    detection.train_dataloader.dataset = dict(type='ConcatDataset', datasets=[labelled, other])
    assert not warnings(detection)


def test_annotations_that_repeat_another_one(detection, annotations):
    entries = annotations['annotations']
    copies = [dict(entry, id=10_000 + number) for number, entry in enumerate(entries)]
    annotations['annotations'] = [*entries, *copies]
    annotations.save()
    text = only(warnings(detection), 'boxes-twice')
    assert f': {len(entries)} of {2 * len(entries)} annotations repeat another one' in text
    for copy in copies:
        copy['category_id'] = copy['category_id'] % 6 + 1  # an object may be of two classes
    annotations.save()
    assert not warnings(detection)


def test_names_that_are_no_text(detection, annotations):
    """Some number their classes; a file of somebody's own may have null beside them."""
    names = list(range(1, 7))
    detection.train_dataloader.dataset.metainfo.classes = names
    for name, category in zip(names, annotations['categories'], strict=True):
        category['name'] = name
    annotations['categories'].append({'id': 7, 'name': None})
    annotations['annotations'][0]['category_id'] = 7
    annotations.save()
    checked = check_data(detection, ('train',))
    assert not checked.found
    assert ', 1 object of other classes (None), ' in checked.lines()[0]
