"""Counts of data sets, and checks that do not depend on the kind of data set."""

import copy
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from PIL import ExifTags, Image

from mmpola.openmmlab import checks as data_checks
from mmpola.openmmlab.checks import Data, check_data
from mmpola.openmmlab.checks.read import KnownSamples, Labels
from mmpola.openmmlab.checks.report import object_parts, table_lines
from mmpola.openmmlab.checks.table import CHECKS
from mmpola.openmmlab.config.contents import predicted_classes
from tests.helpers.refusals import errors, only, refusal, warnings
from tests.helpers.training import small_config


def test_counts(detection, segmentation, annotations, coco):
    checked = [check_data(cfg, whole=True) for cfg in (detection, segmentation)]
    sets = [data for one in checked for data in one.sets]
    assert [(tuple(data.splits), data.kind, data.images) for data in sets] == [
        (('train',), 'CocoDataset', 12),
        (('val', 'test'), 'CocoDataset', 4),
        (('train',), 'BaseSegDataset', 12),
        (('val', 'test'), 'BaseSegDataset', 4),
    ]
    assert not any(one.found for one in checked)
    boxes, _, pixels, _ = (data.labels for data in sets)
    labels = Counter(entry['category_id'] - 1 for entry in annotations['annotations'])
    assert boxes.numbers == labels
    files = (coco.parent / 'ade/annotations/training').iterdir()
    values = np.concatenate([np.array(Image.open(path)).ravel() for path in files])
    assert pixels.ignored == (values == 0).sum()  # reduce_zero_label
    assert [pixels.numbers[label] for label in range(6)] == np.bincount(values)[1:].tolist()


def test_the_table(detection, annotations, coco):
    checked = check_data(detection, whole=True)
    labels = [data.labels for data in checked.sets]
    first, _, heading, *rows = checked.lines()
    empty = 12 - len({entry['image_id'] for entry in annotations['annotations']})
    assert first == (
        f'train: CocoDataset: 12 images, {labels[0].total} instances, {empty} images without an '
        f'object, 6 classes, read at 192 x 160 ({annotations.path}, {coco}/train2017)'
    )
    assert heading.split() == ['instances', 'train', 'val,', 'test']
    table = [row.split() for row in rows[:6]]
    for label, (name, train, val) in enumerate(table):
        assert name == annotations['categories'][label]['name']
        assert (int(train), int(val)) == tuple(one.numbers[label] for one in labels)


def test_the_table_of_many_classes():
    classes = [f'class{number}' for number in range(80)]
    numbers = Counter({number: 1000 - number for number in range(78)})
    dataset = SimpleNamespace(metainfo={'classes': classes})
    known = KnownSamples(Labels('instances', numbers))
    data = Data(Config(), {'type': 'Many'}, ['train'], dataset, known=known)
    _, _, *rows, absent = table_lines([data])
    assert [row.split()[0] for row in rows[:5]] == classes[:5]
    assert '63 classes in between' in rows[5]
    assert rows[6].split() == ['class68', '932']
    assert len(rows) == 16
    assert absent == 'train: classes without instances (2): class78, class79'


@pytest.mark.parametrize(
    ('others', 'empty', 'parts'),
    [
        (2382, 1200, ['2,382 objects of other classes (cell)', '1,200 images without an object']),
        (1, 1, ['1 object of other classes (cell)', '1 image without an object']),
    ],
)
def test_numbers_of_objects_and_images(others, empty, parts):
    for number, instances in ((5, '5 instances'), (1, '1 instance'), (3000, '3,000 instances')):
        known = KnownSamples(Labels('instances', Counter({0: number})), empty=empty)
        data = Data(Config(), {}, ['train'], others=Counter(cell=others), known=known)
        assert object_parts(data) == [instances, *parts]


def test_class_folders(colours, tmp_path):
    data = shutil.copytree(colours, tmp_path / 'data')
    cfg = small_config(data, tmp_path / 'work')
    sets = check_data(cfg, whole=True).sets
    assert [(tuple(data.splits), data.kind, data.images) for data in sets] == [
        (('train',), 'ClassFolders', 24),
        (('val', 'test'), 'ClassFolders', 9),
    ]
    assert [sets[0].labels.numbers[label] for label in range(3)] == [8, 8, 8]
    broken = data / 'train/green/5.png'
    broken.write_bytes(b'')
    text = only(errors(cfg, whole=True), 'samples-unreadable')
    assert text.endswith(f'(1): {broken} (empty file)')
    cfg.train_dataloader.dataset.colour = 1
    assert 'colour' in only(errors(cfg), 'unreadable')
    shutil.rmtree(data / 'train/green')
    cfg.val_dataloader.dataset.classes = 'gone.txt'
    _, (name, text) = errors(cfg, ('train', 'val'))
    assert name == 'unreadable'
    assert text.startswith('val_dataloader.dataset: ')
    assert "No such file or directory: 'gone.txt'" in text


def test_photographs_of_class_folders_that_are_stored_turned(colours, tmp_path):
    """Orientation 1 says that nothing is turned."""
    data = shutil.copytree(colours, tmp_path / 'data')
    cfg = small_config(data, tmp_path / 'work')
    assert not warnings(cfg)
    for name, orientation in (('red/0', 1), ('red/1', 6), ('green/2', 2), ('blue/3', 8)):
        path = data / 'train' / f'{name}.png'
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        Image.open(path).save(path, exif=exif)
    text = only(warnings(cfg), 'exif')
    assert text.startswith(f'{data}/train: 3 of 24 photographs are stored turned (EXIF), which ')


def test_files_of_class_folders_that_are_left_out(colours, tmp_path):
    data = shutil.copytree(colours, tmp_path / 'data')
    (data / 'train' / 'red' / 'moving.gif').touch()
    cfg = small_config(data, tmp_path / 'work')
    assert warnings(cfg) == [('notes', f'{data}/train: left out: 1 file (.gif)')]


def test_the_first_images_of_class_folders_are_all_of_one_class(colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    cfg.train_dataloader.dataset.indices = 5
    only(errors(cfg), 'nothing-to-learn')


class OwnDataset(BaseDataset):
    """A detection data set of somebody's own."""

    def load_data_list(self):
        """Return two images, the second with the label that `metainfo` names."""
        images = sorted(Path(self.data_prefix['img_path']).iterdir())[:2]
        box = dict(bbox=[1, 1, 20, 20], ignore_flag=0)
        labels = (0, self.metainfo['second'])
        return [
            dict(img_path=str(image), instances=[{**box, 'bbox_label': label}])
            for image, label in zip(images, labels, strict=True)
        ]


def test_a_data_set_of_ones_own(detection, coco):
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True),
        dict(type='PackDetInputs', meta_keys=('img_path',)),
    ]
    detection.train_dataloader.dataset = dict(
        type=OwnDataset,
        metainfo=dict(classes=('cat', 'dog'), second=1),
        data_prefix=dict(img_path=f'{coco}/train2017'),
        pipeline=pipeline,
    )
    detection.model.roi_head.bbox_head.num_classes = 2
    detection.model.roi_head.mask_head.num_classes = 2
    (data,) = check_data(detection, ('train',)).sets
    assert data.labels.numbers == {0: 1, 1: 1}
    detection.train_dataloader.dataset.metainfo.second = 2
    assert 'expected labels 0 … 1 for 2 classes, got 2' in only(errors(detection), 'label-range')


def test_parts_of_the_same_folder_are_counted_each(colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    cfg.train_dataloader.dataset.indices = list(range(0, 24, 2))
    cfg.val_dataloader.dataset = {**cfg.train_dataloader.dataset, 'indices': -5}
    train, val = check_data(cfg, ('train', 'val')).sets
    assert (train.images, val.images) == (12, 5)


def test_one_process_per_machine_opens_the_files(detection, annotations, monkeypatch):
    detection.launcher = 'pytorch'
    monkeypatch.setenv('LOCAL_RANK', '1')
    annotations.path.write_text('')
    assert 'not counted' in check_data(detection, ('train',)).lines()[0]


@pytest.fixture
def with_real_data(root, real_data):
    """A function that returns a config whose data is in a folder of the real data."""

    def read(config, data):
        cfg = Config.fromfile(root / 'configs' / f'{config}.py')
        for split in ('train', 'val', 'test'):
            cfg[f'{split}_dataloader'].dataset.data_root = f'{real_data}/{data}'
        for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
            evaluator.pop('ann_file', None)
        return cfg

    return read


@pytest.mark.real_data
def test_photographs_of_coco(with_real_data, real_data):
    cfg = with_real_data('mask_rcnn_pola_swin_t_1x', 'coco_mini/')
    sets, found, *_ = check_data(cfg, whole=True)
    assert not found
    assert [(one.images, one.images_before_filters, len(one.classes)) for one in sets] == [
        (81, 84, 80),  # three have no annotations
        (44, 44, 80),
    ]
    for data in sets:
        path = real_data / f'coco_mini/annotations/instances_{data.splits[0]}2017.json'
        annotations = json.loads(path.read_text())['annotations']
        assert data.labels.total == sum(not entry['iscrowd'] for entry in annotations)
        assert data.labels.ignored == sum(entry['iscrowd'] for entry in annotations)


@pytest.mark.real_data
def test_photographs_of_ade20k(with_real_data, real_data):
    cfg = with_real_data('upernet_pola_swin_t_160k', 'ade20k_mini')
    sets, found, *_ = check_data(cfg, whole=True)
    assert not found
    for data, split in zip(sets, ('training', 'validation'), strict=True):
        files = (real_data / 'ade20k_mini/annotations' / split).iterdir()
        values = np.concatenate([np.array(Image.open(path)).ravel() for path in files])
        numbers = np.bincount(values, minlength=151)
        assert data.labels.ignored == numbers[0]
        assert [data.labels.numbers[label] for label in range(150)] == numbers[1:].tolist()


@pytest.mark.real_data
def test_photographs_in_class_folders(real_data, tmp_path):
    cfg = small_config(real_data / 'imagenet_mini', tmp_path / 'work')
    cfg.model.num_classes = 10
    sets, found, *_ = check_data(cfg)
    assert not found
    assert [(one.images, one.labels.total, len(one.classes)) for one in sets] == [
        (1200, 1200, 10),
        (409, 409, 10),
    ]


def test_missing_files_are_named(detection, coco):
    detection.train_dataloader.dataset.ann_file = 'none.json'
    detection.train_dataloader.dataset.data_prefix.img = 'none'
    detection.val_evaluator = [dict(type='CocoMetric', ann_file=f'{coco}/other.json')]
    assert errors(detection, ('train', 'val')) == [
        ('files-missing', f'train_dataloader: {coco}/none.json: not found (ann_file)'),
        ('files-missing', f'train_dataloader: {coco}/none: not found (data_prefix.img)'),
        ('files-missing', f'val_evaluator.0.ann_file: {coco}/other.json: not found'),
    ]


@pytest.mark.parametrize('kind', ['detection', 'segmentation'])
def test_the_whole_check_runs_a_sample_through_the_pipeline(kind, request):
    cfg = request.getfixturevalue(kind)
    loading = cfg.train_dataloader.dataset.pipeline.pop(0)
    assert loading.type == 'LoadImageFromFile'
    for whole in (False, True):
        text = only(errors(cfg, whole=whole), 'first-sample')
        assert text.startswith('train_dataloader.dataset: its first sample fails: KeyError')


def test_the_pipeline_of_a_wrapper_is_run_too(detection):
    dataset = detection.train_dataloader.dataset
    inner = dict(dataset, pipeline=[*dataset.pipeline[:2], dict(type='Resize', scale=(96, 80))])
    outer = dict(type='MultiImageMixDataset', dataset=inner)
    for name in ('CopyPaste', 'Mosaic'):
        pipeline = [dict(type=name), dict(type='PackDetInputs')]
        detection.train_dataloader.dataset = dict(outer, pipeline=pipeline)
        if name == 'CopyPaste':
            check_data(detection, ('train',), whole=True)
    found = errors(detection, whole=True)  # mmdet's Mosaic leaves masks as they are
    assert 'sample 0 fails: IndexError' in only(found, 'outer-pipeline')


class FailsForTheThird(BaseTransform):
    def transform(self, results):
        if results['sample_idx'] == 2:
            raise ValueError('three')
        return results


def test_the_pipeline_of_a_wrapper_may_fail_at_times(detection):
    dataset = detection.train_dataloader.dataset
    inner = dict(dataset, pipeline=dataset.pipeline[:2])
    pipeline = [dict(type=FailsForTheThird), dict(type='PackDetInputs')]
    detection.train_dataloader.dataset = dict(
        type='MultiImageMixDataset', dataset=inner, pipeline=pipeline
    )
    found = only(errors(detection, ('train',), whole=True), 'outer-pipeline')
    assert found == 'train_dataloader.dataset: sample 2 fails: ValueError: three'


def test_a_name_without_a_comma(detection):
    detection.train_dataloader.dataset.metainfo = dict(classes='circle')
    (name, text), *_ = errors(detection)
    assert name == 'classes-comma'
    assert text.endswith("('circle',), got 'circle'")


def test_names_in_a_file(detection, tmp_path):
    names = tmp_path / 'classes.txt'
    names.write_text('\n'.join(detection.train_dataloader.dataset.metainfo.classes))
    detection.train_dataloader.dataset.metainfo = dict(classes=str(names))
    assert not check_data(detection, ('train',)).found


def test_heads_with_classes_of_their_own():
    heads = dict(
        roi_head=dict(semantic_head=dict(num_classes=183), bbox_head=[dict(num_classes=2)]),
        rpn_head=dict(num_classes=1),
        auxiliary_head=[dict(type='STDCHead', num_classes=2, boundary_threshold=0.1)],
    )
    assert predicted_classes(heads) == [('model.roi_head.bbox_head.0.num_classes', 2)]


def test_a_skipped_check_is_said_once(segmentation):
    segmentation.model.data_preprocessor.size = (512, 512)
    only(warnings(segmentation), 'padding')
    segmentation.data_checks = dict(skip=['padding', 'suffix'])
    checked = check_data(segmentation, ('train',))
    assert not checked.found
    assert checked.lines()[-1] == 'skipped checks: padding, suffix'


def test_an_error_that_is_skipped_does_not_stop_training(detection, annotations):
    for entry in annotations['annotations']:
        entry['iscrowd'] = 1
    annotations.save()
    only(errors(detection), 'no-objects')
    detection.data_checks = dict(skip=['no-objects'])
    assert check_data(detection, ('train',)).sets[0].labels.ignored > 0


def test_a_refusal_tells_the_warnings_too(segmentation, ade):
    image = min((ade / 'images' / 'training').iterdir())
    image.rename(image.with_suffix('.JPG'))
    segmentation.model.decode_head.num_classes = 3
    error, warning = refusal(check_data, segmentation, ('train',)).splitlines()
    assert error.startswith('the data is not valid: ')
    assert error.endswith('[class-count]')
    assert warning.startswith('warning: ')
    assert warning.endswith('[suffix]')


@pytest.mark.parametrize(('name', 'nearest'), [('paddings', 'padding'), ('CLASS-COUNT', '')])
def test_a_name_that_no_check_has(name, nearest, detection):
    detection.data_checks = dict(skip=['trial', name])
    message = refusal(check_data, detection, ('train',))
    rule = 'data_checks.skip, --skip-checks: expected names of checks, which are in docs/tools.md'
    start, suggested = message.removesuffix('?').split('; did you mean ')
    assert start == f'{rule}, got {name}'
    assert suggested in CHECKS and suggested.startswith(nearest)


def copied(colours, tmp_path, classes=('blue', 'green', 'red')):
    """Return a copy of the class folders with some of the classes, and a config for it."""
    data = shutil.copytree(colours, tmp_path / 'data')
    for folder in data.glob('*/*'):
        if folder.name not in classes:
            shutil.rmtree(folder)
    cfg = small_config(data, tmp_path / 'work')
    cfg.model.num_classes = len(classes)
    return data, cfg


def test_a_single_class_teaches_nothing(colours, tmp_path):
    _, cfg = copied(colours, tmp_path, classes=('red',))
    only(errors(cfg), 'nothing-to-learn')


def test_test_photographs_without_one_of_the_classes(colours, tmp_path):
    data, cfg = copied(colours, tmp_path)
    cfg.test_dataloader.dataset.root = str(shutil.copytree(data / 'val', data / 'camera'))
    shutil.rmtree(data / 'camera/green')
    checked = check_data(cfg, ('train', 'test'))
    (found,) = checked.found
    assert (found.name, found.level) == ('notes', 'warning')
    assert found.text.startswith(f'{data}/camera: no images of 1 of 3 classes')
    assert 'test: classes without samples (1): green' in checked.lines()


def test_class_folders_one_folder_too_deep(colours, tmp_path):
    data, cfg = copied(colours, tmp_path)
    cfg.train_dataloader.dataset.root = str(data)
    assert f'; {data}/train has only folders (blue, green, red)' in only(errors(cfg), 'class-count')


def test_validation_on_files_of_training(colours, tmp_path):
    data, cfg = copied(colours, tmp_path)
    splits = ('train', 'val')
    assert not warnings(cfg, splits)
    source = data / 'train/green/5.png'
    shutil.copy(source, data / 'val/green/other.png')
    text = only(warnings(cfg, splits), 'same-images')
    assert text.startswith('val_dataloader: 1 of 10 images are in train_dataloader too, as equal')
    assert f'({data}/val/green/other.png)' in text
    cfg.val_dataloader.dataset.root = str(data / 'train')
    assert 'val_dataloader: 24 of 24 images' in only(warnings(cfg, splits), 'same-images')
    (data / 'link').symlink_to(data / 'train')
    cfg.val_dataloader.dataset.root = str(data / 'link')
    assert 'val_dataloader: 24 of 24 images' in only(warnings(cfg, splits), 'same-images')


def test_other_photographs_of_a_fixed_camera(colours, tmp_path):
    """They have the same names in each split, and differ in little."""
    data, cfg = copied(colours, tmp_path)
    for name in ('blue', 'green', 'red'):
        for path in sorted((data / 'val' / name).iterdir()):
            image = Image.open(data / 'train' / name / path.name).convert('RGB')
            image.putpixel((3, 4), (9, 9, 9))
            image.save(path)
    assert not warnings(cfg, ('train', 'val'))


def rename_first_image(coco, split, name):
    """Give the first image of a split another name; return its file."""
    path = coco / f'annotations/instances_{split}2017.json'
    content = json.loads(path.read_text())
    image = content['images'][0]
    old = coco / f'{split}2017' / image['file_name']
    image['file_name'] = name
    path.write_text(json.dumps(content))
    return old.rename(old.with_name(name))


def test_versions_of_a_photograph_that_training_learns_from(detection, coco):
    """As Roboflow exports them: turned, mirrored or stored anew, with a number in each name."""
    detection.val_dataloader.dataset.data_root = f'{coco}/'
    detection.val_evaluator.ann_file = f'{coco}/annotations/instances_val2017.json'
    rename_first_image(coco, 'train', 'day_jpg.rf.1a.jpg')
    rename_first_image(coco, 'val', 'night_jpg.rf.2b.jpg')
    assert not warnings(detection, ('train', 'val'))
    version = rename_first_image(coco, 'val', 'day_jpg.rf.2b.jpg')
    text = only(warnings(detection, ('train', 'val')), 'same-images')
    assert text.startswith('val_dataloader: 1 of 4 images are by name (NAME.rf.HASH) versions of')
    assert f'({version})' in text


def test_versions_in_class_folders_are_of_one_class(colours, tmp_path):
    data, cfg = copied(colours, tmp_path)
    (data / 'train/green/0.png').rename(data / 'train/green/0_png.rf.1a.png')
    (data / 'val/red/0.png').rename(data / 'val/red/0_png.rf.2b.png')
    assert not warnings(cfg, ('train', 'val'))
    green = (data / 'val/green/0.png').rename(data / 'val/green/0_png.rf.3c.png')
    text = only(warnings(cfg, ('train', 'val')), 'same-images')
    assert f'({green})' in text


@pytest.mark.parametrize('kind', ['detection', 'segmentation'])
def test_validation_on_the_training_data(kind, request):
    cfg = request.getfixturevalue(kind)
    cfg.val_dataloader.dataset = cfg.train_dataloader.dataset
    found = warnings(cfg, ('train', 'val'))
    (text,) = [text for name, text in found if name == 'same-images']
    assert text.startswith('val_dataloader: 12 of 12 images are in train_dataloader too')


def test_class_folders_of_16_bits(colours, tmp_path):
    data, cfg = copied(colours, tmp_path)
    assert not warnings(cfg)
    for path in data.glob('*/*/*.png'):
        values = np.asarray(Image.open(path).convert('L')).astype(np.uint16)
        Image.fromarray(values * 6).save(path)  # 0 … 1530
    only(warnings(cfg), 'sixteen-bits')


@pytest.mark.parametrize(('kind', 'scale'), [('detection', (40, 30)), ('segmentation', (300, 260))])
def test_images_are_evaluated_at_another_size(kind, scale, request):
    cfg = request.getfixturevalue(kind)
    assert not warnings(cfg, ('train', 'val'))
    for step in cfg.val_dataloader.dataset.pipeline:
        if step.type == 'Resize':
            step.scale = scale
    text = only(warnings(cfg, ('train', 'val')), 'image-scale')
    assert text.startswith('val_dataloader: whole images are resized to ')


def test_the_size_of_test_data_is_compared_before_training(segmentation, tmp_path):
    cfg = segmentation
    cfg.test_dataloader = copy.deepcopy(cfg.val_dataloader)
    (resize,) = (s for s in cfg.test_dataloader.dataset.pipeline if s.type == 'Resize')
    resize.scale = (300, 260)
    checked = check_data(cfg, ('train', 'val'), measured=('test',))
    assert 'test: read at 320 x 256, not checked' in checked.lines()
    (found,) = checked.found
    assert found.text.startswith('test_dataloader: whole images are resized to 300 x 250')
    cfg.test_dataloader.dataset.data_root = str(tmp_path)  # still without data
    checked = check_data(cfg, ('train', 'val'), measured=('test',))
    assert not checked.found
    assert not any(line.startswith('test') for line in checked.lines())


def test_test_data_that_validation_has_read_are_not_read_again(segmentation, monkeypatch):
    read = Mock(wraps=data_checks.read_dataset)
    monkeypatch.setattr(data_checks, 'read_dataset', read)
    segmentation.test_dataloader = copy.deepcopy(segmentation.val_dataloader)
    checked = check_data(segmentation, ('train', 'val'), measured=('test',))
    assert read.call_count == 2
    sizes = {line.partition(': ')[0]: line.partition('read at ')[2] for line in checked.lines()}
    assert sizes['test'] == f'{sizes["val"].partition(" (")[0]}, not checked'


def test_a_check_that_fails_itself_stops_nothing(detection, monkeypatch):
    def fail(data):
        """Fail."""
        raise KeyError('area')

    monkeypatch.setitem(CHECKS, 'suffix', CHECKS['suffix']._replace(ask=fail))
    assert "KeyError: 'area'" in only(warnings(detection), 'suffix')


@pytest.mark.parametrize('width', [18, 9])
def test_objects_that_are_a_few_pixels_small_where_they_are_read(width, detection, annotations):
    """All objects are `width` x 20 pixels in the files and read at a quarter of that."""
    for number, entry in enumerate(annotations['annotations']):
        entry['bbox'] = [number, 1, width, 20]
    annotations.save()
    _, loading, resize, *_ = detection.train_dataloader.dataset.pipeline
    loading.with_mask = False
    resize.scale = (24, 20)
    found = warnings(detection)
    if width == 18:  # 4.5 x 5
        assert not found
    else:
        text = only(found, 'objects-tiny')
        assert 'not larger than 2.2 x 5.0 pixels where the network reads them (9.0 x 20.0' in text


def test_the_scale_of_photographs_against_that_of_the_base_config(segmentation):
    """Both networks read 64 pixels: crops of large images in training, small ones in validation."""
    train, val = (segmentation[f'{split}_dataloader'].dataset for split in ('train', 'val'))
    (resize,) = (step for step in train.pipeline if step.type == 'RandomResize')
    resize.update(scale=(300, 250), ratio_range=(0.5, 2.0))
    (step,) = (step for step in val.pipeline if step.type == 'Resize')
    np.random.seed(0)
    step.scale = (120, 100)  # the smallest in training is 150 x 125
    for split in (train, val):
        split.data_root = train.data_root
    text = only(warnings(segmentation, ('train', 'val')), 'image-scale')
    assert text.startswith('val_dataloader: whole images are resized to 120 x 100, but images of ')
    step.scale = (300, 250)
    checked = check_data(segmentation, ('train', 'val'))
    assert not checked.found
    first, second, *_ = checked.lines()
    assert ', read at 64 x 64, crops of images resized to ' in first
    assert ', read at 320 x 256 (' in second


@pytest.mark.parametrize(
    ('settings', 'weights', 'is_wrong'),
    [
        ({}, True, False),
        (dict(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]), False, True),
        (dict(mean=[103.53, 116.28, 123.675], std=[1, 1, 1]), False, False),  # as for Caffe's
        (dict(mean=[103.53, 116.28, 123.675], std=[1, 1, 1]), True, True),
        (dict(mean=None, std=None), False, False),  # as for YOLOX
        (dict(mean=None, std=None), True, True),
    ],
)
@pytest.mark.parametrize('kind', ['detection', 'segmentation'])
def test_mean_and_std_of_another_range(kind, settings, weights, is_wrong, request):
    cfg = request.getfixturevalue(kind)
    cfg.model.data_preprocessor.update(settings)
    if weights:
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='mmpola://pola_swin_nano')
    found = warnings(cfg, ('train', 'val'))
    assert [name for name, _ in found] == ['input-values'] * is_wrong
    if is_wrong:
        assert 'expected mean and std for pixels of 0 … 25' in found[0][1]


def test_mean_and_std_of_class_folders(colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    assert not warnings(cfg)
    cfg.train_dataloader.dataset.transform.update(mean=[123.675] * 3, std=[58.395] * 3)
    only(warnings(cfg), 'input-values')
