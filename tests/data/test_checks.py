"""What the check of a data set says, word by word, on generated data with one thing wrong."""

import json
import shutil

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmpola.data.checks.check import check_data
from mmpola.data.checks.coco import POLYGONS
from mmpola.messages import UsageError

NAMES = 'circle, square, triangle, star, ring and 1 more'


@pytest.fixture
def coco(shapes, tmp_path):
    return shutil.copytree(shapes / 'coco', tmp_path / 'coco')


@pytest.fixture
def ade(shapes, tmp_path):
    return shutil.copytree(shapes / 'ade', tmp_path / 'ade')


@pytest.fixture
def detection(tiny_config, coco):
    """The tiny detector's config; its training data, alone, is the copy."""
    cfg = Config.fromfile(tiny_config)
    cfg.train_dataloader.dataset.data_root = f'{coco}/'
    return cfg


@pytest.fixture
def segmentation(tiny_segmentation, ade):
    cfg = Config.fromfile(tiny_segmentation)
    cfg.train_dataloader.dataset.data_root = str(ade)
    return cfg


@pytest.fixture
def annotations(coco):
    """The training annotations as read; a test changes them and calls `save`."""
    path = coco / 'annotations' / 'instances_train2017.json'
    content = json.loads(path.read_text())
    content['path'], content['save'] = (
        path,
        lambda: path.write_text(
            json.dumps({key: value for key, value in content.items() if key not in ('path', 'save')})
        ),
    )
    return content


def problems(cfg, whole=False):
    with pytest.raises(UsageError) as raised:
        check_data(cfg, ('train',), whole=whole)
    headline, *lines = str(raised.value).splitlines()
    assert headline == 'the data is not right'
    return [line.removeprefix('  ') for line in lines]


def test_counts_what_the_files_hold(detection, segmentation, annotations, shapes):
    train, val = check_data(detection)
    assert (train.splits, train.kind, val.splits) == (['train'], 'COCO', ['val', 'test'])
    assert (train.contents.images, val.contents.images) == (12, 4)
    assert train.contents.annotations == len(annotations['annotations'])
    annotated = {annotation['image_id'] for annotation in annotations['annotations']}
    assert train.contents.without == 12 - len(annotated)
    assert train.contents.problems == train.contents.notes == []
    maps = check_data(segmentation, whole=True)
    assert [(data.splits, data.kind, data.contents.images, data.contents.annotations) for data in maps] == [
        (['train'], 'label maps', 12, 12),
        (['val', 'test'], 'label maps', 4, 4),
    ]


def test_polygons_are_left_out_and_nothing_else():
    text = '{"segmentation": [[1.5,2, 3e-1]], "area": 1, "a": [1]}, {"b": [2], "segmentation" : [[1],\n[-2]]}'
    assert POLYGONS.sub(b'"segmentation":[]', text.encode()) == (
        b'{"segmentation":[], "area": 1, "a": [1]}, {"b": [2], "segmentation":[]}'
    )


def test_classes_of_another_data_set(detection, annotations):
    detection.train_dataloader.dataset.pop('metainfo')
    assert problems(detection) == [
        f'{annotations["path"]}: has no category for 80 of the 80 classes of the config '
        f'(person, bicycle, car, motorcycle, airplane and 75 more); it has {NAMES}: '
        'set metainfo.classes of the data sets',
        *(
            f'model.roi_head.{head}_head.num_classes is 6, but the data set of train_dataloader has 80 classes: '
            'person, bicycle, car, motorcycle, airplane and 75 more'
            for head in ('bbox', 'mask')
        ),
    ]


def test_classes_in_another_order_than_the_file(detection, annotations):
    detection.train_dataloader.dataset.metainfo.classes = ('square', 'circle', 'triangle', 'star', 'ring', 'cross')
    assert problems(detection) == [
        f"{annotations['path']}: metainfo.classes must stand in the file's order, by which mmdet numbers them; the "
        f'file has {NAMES}, the config square, circle, triangle, star, ring and 1 more'
    ]


def test_a_choice_of_classes_is_noted(detection, annotations):
    detection.train_dataloader.dataset.metainfo.classes = ('circle', 'square', 'triangle', 'star', 'ring')
    for head in ('bbox_head', 'mask_head'):
        detection.model.roi_head[head].num_classes = 5
    crosses = sum(annotation['category_id'] == 6 for annotation in annotations['annotations'])
    assert crosses > 0
    (train,) = check_data(detection, ('train',))
    assert train.contents.notes == [
        f'{annotations["path"]}: annotations of categories that are no class of the config are left out: '
        f'cross ({crosses})'
    ]


def test_annotations_that_belong_nowhere(detection, annotations):
    annotations['annotations'][0]['category_id'] = 77
    annotations['annotations'][1]['image_id'] = 4711
    annotations['annotations'][2]['id'] = annotations['annotations'][3]['id']
    annotations['categories'][1]['name'] = 'circle'
    annotations['save']()
    path = annotations['path']
    assert problems(detection) == [
        f'{path}: 1 annotations have the id of another one',
        f'{path}: categories of the same name: circle',
        f'{path}: has no category for 1 of the 6 classes of the config (square); it has circle, circle, triangle, '
        'star, ring and 1 more: set metainfo.classes of the data sets',
        f'{path}: annotations have category ids that are not among its categories: 77',
        f'{path}: annotations belong to image ids that it does not list: 4711',
    ]


def test_boxes_that_no_pixel_is_in(detection, annotations):
    flat, away, beyond = annotations['annotations'][:3]
    flat['bbox'][3], away['bbox'][0], beyond['bbox'][2] = 0, 96, 96
    annotations['save']()
    path = annotations['path']
    assert problems(detection) == [
        f'{path}: boxes narrower than a pixel or without area, which mmdet drops (1): annotations {flat["id"]}',
        f'{path}: boxes outside their image (1): annotations {away["id"]}',
    ]
    others = [{**beyond, 'id': 1000 + number} for number in range(2000)]
    annotations['annotations'] += others
    annotations['save']()
    (train,) = check_data(detection, ('train',))  # 2 of 2000 and more, as in COCO itself
    assert train.contents.notes == [
        f'{path}: boxes narrower than a pixel or without area, which mmdet drops (1): annotations {flat["id"]}',
        f'{path}: boxes outside their image (1): annotations {away["id"]}',
        f'{path}: boxes that reach beyond their image (2001): annotations {beyond["id"]}, '
        '1000, 1001, 1002, 1003 and 1996 more',
    ]
    flat['bbox'][3] = float('nan')
    annotations['save']()
    assert problems(detection) == [f'{path}: boxes with values that are no numbers (1): annotations {flat["id"]}']


def test_nothing_to_train_on(detection, annotations):
    annotations['annotations'] = []
    annotations['save']()
    assert problems(detection) == [f'{annotations["path"]}: has no annotations to train on']
    annotations['images'] = []
    annotations['save']()
    assert problems(detection) == [f'{annotations["path"]}: lists no images']
    annotations['path'].write_text('[')
    assert problems(detection) == [
        f'{annotations["path"]}: not a COCO annotation file '
        "(JSONDecodeError('Expecting value: line 1 column 2 (char 1)'))"
    ]


def test_every_image_is_read_when_the_whole_is_asked_for(detection, annotations, coco):
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
    assert unreadable.startswith(
        f'{folder}: images that cannot be read (3): {empty.name} (empty file), {truncated.name} '
        '(image file is truncated ('
    )
    assert unreadable.endswith(f' bytes not processed)), {text.name} (not an image)')
    assert resized == (
        f'{folder}: images of another size, as loaded, than instances_train2017.json says (1): '
        f'{turned.name} (80 x 96, not 96 x 80)'
    )


def test_labels_beyond_the_classes_are_named_at_the_start_of_a_training(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    first, second, third, *_ = sorted(folder.iterdir())
    for path, label in ((first, 200), (second, 7), (third, 255)):  # 255 is ignored
        labels = np.array(Image.open(path))
        labels[:2, :3] = label
        Image.fromarray(labels).save(path)
    assert problems(segmentation) == [
        f'{folder}: label maps with labels that are not 0 … 6 or 255 (6 classes, reduce_zero_label=True) (2): '
        f'{first.name} (label 200), {second.name} (label 7)'
    ]
    segmentation.train_dataloader.dataset.reduce_zero_label = False
    assert 'labels that are not 0 … 5 or 255 (6 classes, reduce_zero_label=False)' in problems(segmentation)[0]


def test_label_200_among_150_classes(root, segmentation, ade):
    cfg = Config.fromfile(root / 'configs' / 'upernet_pola_swin_t_160k.py')
    cfg.train_dataloader.dataset.data_root = str(ade)
    check_data(cfg, ('train',))
    path = sorted((ade / 'annotations' / 'training').iterdir())[0]
    Image.fromarray(np.full((80, 96), 200, np.uint8)).save(path)
    assert problems(cfg) == [
        f'{path.parent}: label maps with labels that are not 0 … 150 or 255 (150 classes, reduce_zero_label=True) (1): '
        f'{path.name} (label 200)'
    ]


def test_label_maps_of_the_wrong_kind(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    colours, small, broken, *_ = sorted(folder.iterdir())
    Image.new('RGB', (96, 80)).save(colours)
    Image.new('L', (48, 40)).save(small)
    broken.write_bytes(b'')
    assert problems(segmentation) == [
        f'{folder}: label maps that are not of one channel with 8 bits (1): {colours.name} (RGB)',
        f'{folder}: label maps of another size than their image as loaded (1): {small.name} (48 x 40, image 96 x 80)',
        f'{folder}: label maps that cannot be read (1): {broken.name} (empty file)',
    ]


def test_partners(segmentation, ade):
    images, maps = ade / 'images' / 'training', ade / 'annotations' / 'training'
    first, second, *_ = (path.stem for path in sorted(images.iterdir()))
    (images / f'{first}.jpg').unlink()
    (maps / f'{second}.png').unlink()
    assert problems(segmentation) == [
        f'{images}: images without a label map in {maps} (1): {second}.jpg',
        f'{maps}: label maps without an image in {images} (1): {first}.png',
    ]
    for path in list(images.iterdir()):
        path.rename(path.with_suffix('.jpeg'))
    assert problems(segmentation)[0] == (
        f'{images}: no images with the suffix .jpg; it holds '
        + ', '.join(sorted(path.name for path in images.iterdir())[:5])
        + ' and 6 more'
    )


def test_a_broken_config_of_a_data_set_is_one_of_the_problems(segmentation):
    segmentation.train_dataloader.dataset.type = 'NoDataset'
    segmentation.train_dataloader.dataset.pop('metainfo')
    (line,) = problems(segmentation)
    assert line.startswith('train_dataloader.dataset: NoDataset is not in the mmseg::dataset registry.')


def test_one_process_of_a_machine_looks_for_all(detection, annotations, monkeypatch):
    annotations['annotations'] = []
    annotations['save']()
    detection.launcher = 'pytorch'
    monkeypatch.setenv('LOCAL_RANK', '1')
    assert check_data(detection, ('train',))[0].contents.images == 0
    monkeypatch.setenv('LOCAL_RANK', '0')
    assert problems(detection) == [f'{annotations["path"]}: has no annotations to train on']


def test_the_table(run_tool, tiny_config, shapes):
    output = run_tool('check_data.py', tiny_config).stdout
    assert 'reading files: 16 of 16' in output
    assert f'train: {shapes}/coco/annotations/instances_train2017.json, {shapes}/coco/train2017' in output
    rows = [[cell.strip() for cell in line.split('│')[1:-1]] for line in output.splitlines() if line.startswith('│')]
    truth = json.loads((shapes / 'coco' / 'annotations' / 'instances_val2017.json').read_text())
    empty = 4 - len({annotation['image_id'] for annotation in truth['annotations']})
    assert rows[1] == ['val, test', 'COCO', '4', str(len(truth['annotations'])), str(empty), '6']


@pytest.mark.real_data
@pytest.mark.parametrize(
    ('config', 'data', 'counts'),
    [
        ('mask_rcnn_pola_swin_t_1x', 'coco_mini/', [(84, 690, 3, 80), (44, 358, 0, 80)]),
        ('upernet_pola_swin_t_160k', 'ade20k_mini', [(28, 28, 0, 150), (12, 12, 0, 150)]),
    ],
)
def test_real_data_are_right(root, real_data, config, data, counts):
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.data_root = f'{real_data}/{data}'
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.pop('ann_file', None)
    found = [data.contents for data in check_data(cfg, whole=True)]
    assert [(c.images, c.annotations, c.without, len(c.classes)) for c in found] == counts
