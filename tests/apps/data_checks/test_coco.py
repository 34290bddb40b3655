"""Problems and notes of data sets in COCO layout, on generated data with one error each."""

import json
import math
import reprlib

import cv2
import pytest
from mmengine.registry import DATASETS
from PIL import Image

from mmpola.apps.data_checks import check_data
from mmpola.apps.data_checks.coco_file import POLYGONS, SOME_POLYGON
from mmpola.read_image import size_as_loaded
from tests.helpers.refusals import assert_lines, problems

NAMES = 'circle, square, triangle, star, ring and 1 more'


def test_polygons_are_replaced_and_nothing_else():
    text = (
        b'{"segmentation": [[1.5,2, 3e-1]], "area": 1, "a": [1]}, '
        b'{"b": [2], "segmentation" : [[1],\n[-2]]}'
    )
    assert POLYGONS.sub(SOME_POLYGON, text) == (
        b'{"segmentation":[[]], "area": 1, "a": [1]}, {"b": [2], "segmentation":[[]]}'
    )
    for other in (
        '[]',
        '[1, 2, 3, 4]',
        '[5]',
        '[[[1, 2]]]',
        '[[1, NaN]]',
        '["1"]',
        '[[1], 2]',
        '[[1, "2"]]',
    ):
        assert POLYGONS.search(f'{{"segmentation": {other}, "area": 1}}'.encode()) is None


def test_classes_of_another_data_set(detection, annotations):
    detection.train_dataloader.dataset.pop('metainfo')
    persons = '(80): person, bicycle, car, motorcycle, airplane and 75 more'
    lines = problems(detection)
    assert_lines(
        lines,
        (annotations.path, 'metainfo.classes', persons),
        ('model.roi_head.bbox_head.num_classes: expected 80', 'train_dataloader', 'got 6'),
        ('model.roi_head.mask_head.num_classes: expected 80', 'train_dataloader', 'got 6'),
    )
    assert NAMES in lines[0]


def test_classes_in_another_order_than_the_file(detection, annotations):
    detection.train_dataloader.dataset.metainfo.classes = (
        'square',
        'circle',
        'triangle',
        'star',
        'ring',
        'cross',
    )
    assert_lines(
        problems(detection),
        (
            f'{annotations.path}: metainfo.classes: ',
            NAMES,
            'got square, circle, triangle, star, ring and 1 more',
        ),
    )


def test_ids_and_names_that_are_wrong(detection, annotations):
    annotations['annotations'][0]['category_id'] = 77
    annotations['annotations'][1]['image_id'] = 4711
    annotations['annotations'][2]['id'] = annotations['annotations'][3]['id']
    annotations['categories'][1]['name'] = 'circle'
    annotations.save()
    path = annotations.path
    assert_lines(
        problems(detection),
        (path, 'ids of several annotations', f'(1): {annotations["annotations"][3]["id"]}'),
        (path, 'names of several categories', '(1): circle'),
        (path, 'metainfo.classes', '(1): square'),
        (path, 'category ids', '(1): 77'),
        (path, 'image ids', '(1): 4711'),
    )


def test_several_images_with_one_id(detection, annotations):
    first, second = annotations['images'][:2]
    second['id'] = first['id']
    annotations.save()
    assert_lines(
        problems(detection)[:1], (annotations.path, 'ids of several images', f'(1): {first["id"]}')
    )


def test_boxes_that_mmdet_drops(detection, annotations):
    flat, away, beyond = annotations['annotations'][:3]
    flat['bbox'][3] = 0
    away['bbox'][0] = 96
    beyond['bbox'][2] = 96
    annotations.save()
    path = annotations.path
    (train,) = check_data(detection, ('train',))
    assert_lines(
        train.warnings,
        (path, 'without area', f'(1): {flat["id"]}'),
        (path, 'outside their image', f'(1): {away["id"]}'),
    )
    assert_lines(train.notes, (path, 'beyond their image', f'(1): {beyond["id"]}'))
    assert problems(detection, strict=True) == train.warnings


@pytest.mark.parametrize('wrong', [float('nan'), float('inf'), '7', None])
def test_values_that_are_no_finite_numbers(detection, annotations, wrong):
    box, area, polygon, *_ = annotations['annotations']
    box['bbox'][3] = wrong
    area['area'] = wrong
    polygon['segmentation'] = [[1.0, 2.0, wrong, 4.0, 5.0, 6.0]]
    annotations.save()
    start = f'{annotations.path}: annotations: expected'
    assert_lines(
        problems(detection),
        (start, '4 finite numbers as bbox', f'(id {box["id"]})'),
        (start, 'a finite number as area', f'(1): {wrong!r} (id {area["id"]})'),
        (start, 'of finite numbers, or run lengths as segmentation', f'(id {polygon["id"]})'),
    )


def test_counts_are_those_of_mmdet(detection, annotations):
    flat, away, ignored, crowd, *others = annotations['annotations']
    flat['area'] = 0
    away['bbox'][0] = -99
    ignored['ignore'] = True
    crowd['iscrowd'] = 1
    narrow, bare = annotations['images'][-2:]
    narrow['width'] = 31
    annotations['annotations'] = [
        a for a in annotations['annotations'] if a['image_id'] != bare['id']
    ]
    annotations.save()
    dataset = detection.train_dataloader.dataset
    dataset.metainfo.classes = ('circle', 'square', 'triangle', 'star', 'ring')
    dataset.filter_cfg = dict(filter_empty_gt=True, min_size=32)
    for head in ('bbox_head', 'mask_head'):
        detection.model.roi_head[head].num_classes = 5
    (train,) = check_data(detection, ('train',))
    built = DATASETS.build({**dataset, 'pipeline': []})
    instances = [
        [box for box in item['instances'] if not box['ignore_flag']]
        for item in map(built.get_data_info, range(len(built)))
    ]
    annotated = {a['image_id'] for a in annotations['annotations'] if a['category_id'] != 6}
    empty = [image['file_name'] for image in annotations['images'] if image['id'] not in annotated]
    assert train.images == len(built) == 11 - len(empty)
    assert train.annotations == sum(map(len, instances)) < len(others)
    assert train.unannotated == sum(not boxes for boxes in instances)
    crosses = sum(a['category_id'] == 6 for a in annotations['annotations'])
    assert crosses > 0
    path = annotations.path
    assert_lines(
        train.warnings,
        (path, 'without area', f'(1): {flat["id"]}'),
        (path, 'outside their image', f'(1): {away["id"]}'),
        (path, 'dropped categories', f'(1): cross ({crosses})'),
        (path, "'ignore'", f'(1): {ignored["id"]}'),
        (path, 'filter_cfg.min_size', f'(1): {narrow["file_name"]}'),
        (path, 'filter_cfg.filter_empty_gt', f'({len(empty)}): {", ".join(empty)}'),
    )
    assert_lines(train.notes[-1:], (path, 'crowds', f'(1): {crowd["id"]}'))


@pytest.mark.parametrize('segmentation', [None, []])
def test_annotations_without_the_mask_that_is_trained_on(detection, annotations, segmentation):
    bare, dropped = annotations['annotations'][:2]
    bare['segmentation'] = dropped['segmentation'] = segmentation
    dropped['area'] = 0
    annotations.save()
    assert_lines(
        problems(detection),
        ('train_dataloader: ', 'with_mask=True', f'got 1 annotations without one: {bare["id"]}'),
    )
    pipeline = detection.train_dataloader.dataset.pipeline
    next(transform for transform in pipeline if 'with_mask' in transform).with_mask = False
    assert_lines(
        problems(detection),
        ('train_dataloader.dataset.pipeline: ', 'model.roi_head.mask_head', 'got none'),
    )
    detection.model.roi_head.mask_head = None
    check_data(detection, ('train',))


@pytest.mark.parametrize(
    'segmentation',
    [
        [1, 2, 30, 4, 5, 60],
        [5],
        'abc',
        ['abcdef'],
        [[[1, 2], [30, 4], [5, 60]]],
        [[1, 2, 3, 4, 5, 6], 7],
        [None],
        7,
    ],
)
def test_segmentations_with_other_brackets_than_polygons(detection, annotations, segmentation):
    odd = annotations['annotations'][3]
    odd['segmentation'] = segmentation
    annotations.save()
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: annotations: expected polygons')
    assert line.endswith(f' (1): {reprlib.repr(segmentation)} (id {odd["id"]})')


@pytest.mark.parametrize('content', [[], ['images'], 'text', None, 7, 1.5, True])
def test_a_file_that_holds_no_object(detection, annotations, content):
    annotations.path.write_text(json.dumps(content))
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: ')
    assert line.endswith(f'got {content!r}')


@pytest.mark.parametrize('section', ['images', 'annotations', 'categories'])
@pytest.mark.parametrize('value', ['missing', {}, 'text', None, 7])
def test_a_section_that_is_no_list(detection, annotations, section, value):
    annotations[section] = value
    if value == 'missing':
        annotations.pop(section)
    annotations.save()
    (line,) = problems(detection)
    shown = 'none' if value == 'missing' else repr(value)
    assert line.startswith(f'{annotations.path}: {section}: expected a list')
    assert line.endswith(f'got {shown}')


@pytest.mark.parametrize('section', ['images', 'annotations', 'categories'])
def test_entries_that_are_no_objects(detection, annotations, section):
    annotations[section][1] = 7
    annotations[section][2] = None
    annotations.save()
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: {section}: expected objects')
    assert line.endswith('(2): 7, None')


@pytest.mark.parametrize(
    ('section', 'field'),
    [
        ('images', 'id'),
        ('images', 'file_name'),
        ('images', 'width'),
        ('images', 'height'),
        ('annotations', 'id'),
        ('annotations', 'image_id'),
        ('annotations', 'category_id'),
        ('annotations', 'bbox'),
        ('annotations', 'area'),
        ('categories', 'id'),
        ('categories', 'name'),
    ],
)
@pytest.mark.parametrize('value', ['missing', [1], {'a': 1}, None])
def test_fields_of_the_wrong_type(detection, annotations, section, field, value):
    entry = annotations[section][1]
    place = 'entry 1' if field == 'id' else f'id {entry["id"]}'
    entry[field] = value
    if value == 'missing':
        entry.pop(field)
    annotations.save()
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path}: {section}: expected ')
    shown = 'none' if value == 'missing' else repr(value)
    assert f' as {field}' in line
    assert line.endswith(f'(1): {shown} ({place})')


def test_odd_values_that_are_only_looked_at_for_their_truth(detection, annotations):
    annotations['annotations'][0]['iscrowd'] = [1]
    annotations['annotations'][1]['ignore'] = {'a': 1}
    annotations.save()
    (train,) = check_data(detection, ('train',))
    assert train.annotations == len(annotations['annotations']) - 2


def test_a_file_name_longer_than_the_system_allows(detection, annotations):
    annotations['images'][0]['file_name'] = 'a' * 5000
    annotations.save()
    (line,) = problems(detection)
    assert line.startswith(f'{annotations.path} lists images that are not in ')
    assert '(1): aaaa' in line


def test_json_that_is_nested_too_deeply_is_one_line(detection, annotations):
    annotations.path.write_text('[' * 100_000)
    (problem,) = problems(detection)
    assert problem.startswith(f'{annotations.path}: ')
    assert 'RecursionError' in problem


@pytest.mark.parametrize(
    ('orientation', 'size'),
    [(1, (9, 5)), (4, (9, 5)), *((turned, (5, 9)) for turned in (5, 6, 7, 8))],
)
def test_the_size_of_an_image_that_the_camera_turned(orientation, size, tmp_path):
    image = Image.new('RGB', (9, 5))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / 'turned.jpg', exif=exif)
    assert size_as_loaded(tmp_path / 'turned.jpg') == size
    assert cv2.imread(str(tmp_path / 'turned.jpg')).shape[1::-1] == size


def test_run_lengths_that_no_mask_has(detection, annotations):
    sizes = {image['id']: [image['height'], image['width']] for image in annotations['images']}
    good, long, text, empty, other, *_ = annotations['annotations']
    area = math.prod(sizes[good['image_id']])
    for annotation, counts in (
        (good, [area - 9, 9]),
        (long, [area, 9]),
        (text, 'abc'),
        (other, [0, 80 * 96]),
    ):
        annotation['segmentation'] = {'size': sizes[annotation['image_id']], 'counts': counts}
    empty['segmentation'] = {'size': sizes[empty['image_id']]}
    other['segmentation']['size'] = sizes[other['image_id']][::-1]
    annotations.save()
    path = annotations.path
    undecoded, resized = problems(detection)
    assert_lines(
        [undecoded, resized],
        (path, 'cannot be decoded (3)', f"annotation {empty['id']} (KeyError('counts'))"),
        (path, 'size differs', f'(1): annotation {other["id"]} (80 x 96, image 96 x 80)'),
    )
    assert f'annotation {long["id"]} (ValueError' in undecoded
    assert f'annotation {text["id"]} (ValueError' in undecoded
    assert problems(detection, whole=True)[:2] == [undecoded, resized]


def test_nothing_to_train_on(detection, annotations):
    for annotation in annotations['annotations']:
        annotation['iscrowd'] = 1
    annotations.save()
    path = annotations.path
    (line,) = problems(detection)
    assert line.startswith(f'{path}: has no annotations')
    assert f' {len(annotations["annotations"])} ' in line
    annotations['annotations'] = []
    annotations.save()
    assert_lines(problems(detection), (path, 'no annotations', ''))
    annotations['images'] = []
    annotations.save()
    assert_lines(problems(detection), (path, 'no images', ''))
    path.write_text('[')
    assert_lines(problems(detection), (path, 'JSONDecodeError', ''))


def test_every_image_is_read_in_the_whole_check(detection, annotations, coco):
    folder = coco / 'train2017'
    empty, truncated, text, turned, *_ = sorted(folder.iterdir())
    truncated.write_bytes(truncated.read_bytes()[:1000])
    empty.write_bytes(b'')
    text.write_text('no image')
    with Image.open(turned) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(turned, exif=exif)
    check_data(detection, ('train',))  # the fast part opens no image
    unreadable, resized = problems(detection, whole=True)
    start = f'{folder}: images that cannot be read (3): {empty.name} (empty file), '
    assert unreadable.startswith(f'{start}{truncated.name} (OSError: ')
    assert unreadable.endswith(f', {text.name} (not an image)')
    assert_lines(
        [resized],
        (folder, 'instances_train2017.json', f'(1): {turned.name} (80 x 96, not 96 x 80)'),
    )
