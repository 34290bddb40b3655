"""Counts of data sets, and checks that do not depend on the kind of data set."""

import math
import shutil

import pytest
from mmengine.config import Config

from mmpola.apps.data_checks import check_data, training_images
from tests.helpers.refusals import assert_lines, problems, refusal
from tests.helpers.training import small_config


def test_counts(detection, segmentation, annotations, shapes):
    train, val = check_data(detection)
    assert (train.splits, train.kind, val.splits) == (['train'], 'COCO', ['val', 'test'])
    assert (train.images, val.images) == (12, 4)
    assert train.annotations == len(annotations['annotations'])
    annotated = {annotation['image_id'] for annotation in annotations['annotations']}
    assert train.unannotated == 12 - len(annotated)
    assert train.problems == train.warnings == train.notes == []
    maps = check_data(segmentation, whole=True)
    assert [(data.splits, data.kind, data.images, data.annotations) for data in maps] == [
        (['train'], 'label maps', 12, 12),
        (['val', 'test'], 'label maps', 4, 4),
    ]


def test_class_folders(colours, tmp_path):
    data = shutil.copytree(colours, tmp_path / 'data')
    cfg = small_config(data, tmp_path / 'work')
    train, val = check_data(cfg, whole=True)
    assert [(data.splits, data.kind, data.images) for data in (train, val)] == [
        (['train'], 'class folders', 24),
        (['val', 'test'], 'class folders', 9),
    ]
    assert train.notes == []
    for number in range(12):
        shutil.copy(data / 'train/red/0.png', data / f'train/red/more{number}.png')
    for number in range(1, 8):
        (data / f'train/blue/{number}.png').unlink()
    (train,) = check_data(cfg, ('train',))
    assert_lines(train.notes, (f'{data}/train', 'blue has 1', 'red has 20'))
    broken = data / 'train/green/5.png'
    broken.write_bytes(b'')
    check_data(cfg, ('train',))  # the fast part opens no image
    (line,) = problems(cfg, whole=True)
    assert line.startswith(f'{data}/train: images that cannot be read')
    assert f'(1): {broken} (' in line
    shutil.rmtree(data / 'train/green')
    (data / 'train/green').mkdir()
    (line,) = problems(cfg)
    assert line.startswith(
        f'train_dataloader.dataset: {data}/train: class folders without images ('
    )


@pytest.mark.parametrize('name', ['pipeline', 'lazy_init'])
def test_an_unknown_argument_of_class_folders_is_named_with_the_known_ones(name, colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    cfg.train_dataloader.dataset[name] = 'given'
    (line,) = problems(cfg)
    assert line.startswith('train_dataloader.dataset: ')
    assert '(root, training, transform, classes, indices)' in line
    assert line.endswith(f'got {name}')


def test_parts_of_the_same_folder_are_counted_each(colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    cfg.train_dataloader.dataset.indices = list(range(0, 24, 2))
    cfg.val_dataloader.dataset = {**cfg.train_dataloader.dataset, 'indices': -5}
    train, val = check_data(cfg, ('train', 'val'))
    assert (train.images, val.images) == (12, 5)
    cfg.train_dataloader.batch_size = 5
    cfg.train_dataloader.dataset.indices = -4
    (line,) = problems(cfg)
    assert line.startswith('train_dataloader.batch_size: expected at most 4')
    assert line.endswith('got 5')


def test_a_broken_config_of_a_data_set_is_one_of_the_problems(segmentation):
    segmentation.train_dataloader.dataset.type = 'NoDataset'
    segmentation.train_dataloader.dataset.pop('metainfo')
    (line,) = problems(segmentation)
    assert line.startswith('train_dataloader.dataset.type: ')
    assert 'got NoDataset' in line
    segmentation.train_dataloader.dataset.type = 'BaseSegDatset'
    (line,) = problems(segmentation)
    assert line.endswith('got BaseSegDatset; did you mean BaseSegDataset?')
    segmentation.train_dataloader.dataset.update(type='BaseSegDataset', reduce_zero_labl=True)
    (line,) = problems(segmentation)
    assert line.startswith('train_dataloader.dataset: ')
    assert line.endswith('got reduce_zero_labl; did you mean reduce_zero_label?')


def test_one_process_per_machine_checks_for_all(detection, annotations, monkeypatch):
    annotations['annotations'] = []
    annotations.save()
    detection.launcher = 'pytorch'
    monkeypatch.setenv('LOCAL_RANK', '1')
    assert check_data(detection, ('train',))[0].images == 0
    monkeypatch.setenv('LOCAL_RANK', '0')
    assert_lines(problems(detection), (annotations.path, 'no annotations', ''))


def test_a_batch_has_no_more_images_than_a_process(detection, segmentation, monkeypatch):
    key = 'train_dataloader.batch_size: expected at most'
    loader = detection.train_dataloader
    loader.batch_size = 13
    assert_lines(problems(detection), (f'{key} 12', '12 images', 'got 13'))
    loader.dataset.indices = 5
    assert_lines(problems(detection), (f'{key} 5', '5 images', 'got 13'))
    loader.dataset = dict(type='RepeatDataset', times=3, dataset=loader.dataset)
    check_data(detection, ('train',))
    detection.launcher = 'pytorch'
    monkeypatch.setenv('WORLD_SIZE', '2')
    (line,) = problems(detection)
    assert_lines([line], (f'{key} 8', '15 images', 'got 13'))
    assert '2 processes' in line
    segmentation.train_dataloader.batch_size = 13  # of an InfiniteSampler, which has no epochs
    check_data(segmentation, ('train',))


def test_training_images_are_unknown_to_processes_that_open_no_file(detection, monkeypatch):
    detection.launcher = 'pytorch'
    detection.train_dataloader.dataset.indices = 5
    monkeypatch.setenv('LOCAL_RANK', '1')
    assert training_images(detection, check_data(detection, ('train',))) == math.inf
    monkeypatch.setenv('LOCAL_RANK', '0')
    assert training_images(detection, check_data(detection, ('train',))) == 5


@pytest.mark.real_data
@pytest.mark.parametrize(
    ('config', 'data', 'counts'),
    [
        ('mask_rcnn_pola_swin_t_1x', 'coco_mini/', [(81, 681, 0, 80), (44, 353, 0, 80)]),
        ('upernet_pola_swin_t_160k', 'ade20k_mini', [(28, 28, 0, 150), (12, 12, 0, 150)]),
    ],
)
def test_real_data_is_valid(root, real_data, config, data, counts):
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.data_root = f'{real_data}/{data}'
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.pop('ann_file', None)
    found = check_data(cfg, whole=True)
    assert [(c.images, c.annotations, c.unannotated, len(c.classes)) for c in found] == counts


def test_a_missing_file_in_a_folder_that_is_there_is_named_with_what_is_there(detection, coco):
    detection.train_dataloader.dataset.ann_file = 'annotations/instances_trian2017.json'
    detection.val_evaluator.ann_file = f'{coco}/annotations/instance_val2017.json'
    headline, train, val = refusal(check_data, detection, ('train', 'val')).splitlines()
    assert headline == 'the data is not complete'
    assert train.startswith(
        f'  train_dataloader: {coco}/annotations/instances_trian2017.json: not found '
    )
    present = f'{coco}/annotations has instances_train2017.json, instances_val2017.json'
    assert train.endswith(f'; {present}; did you mean instances_train2017.json?')
    assert val.startswith(f'  {coco}/annotations/instance_val2017.json: not found')
    assert 'val_evaluator.ann_file' in val
    assert val.endswith(f'; {present}; did you mean instances_val2017.json?')


def test_a_missing_folder_of_a_data_set_is_named_with_its_neighbours(detection, coco):
    detection.train_dataloader.dataset.data_prefix.img = 'trian2017'
    _, line = refusal(check_data, detection, ('train',)).splitlines()
    assert line.endswith(f'; {coco} has annotations, train2017, val2017; did you mean train2017?')
    detection.train_dataloader.dataset.data_root = f'{coco}s/'
    assert 'link it' in refusal(check_data, detection, ('train',))


@pytest.mark.parametrize('kind', ['detection', 'segmentation'])
def test_the_whole_check_runs_a_sample_through_the_pipeline(kind, request):
    cfg = request.getfixturevalue(kind)
    check_data(cfg, ('train',), whole=True)
    loading = cfg.train_dataloader.dataset.pipeline.pop(0)
    assert loading.type == 'LoadImageFromFile'
    check_data(cfg, ('train',))  # the fast part opens no image
    (line,) = problems(cfg, whole=True)
    assert line.startswith('train_dataloader.dataset: ')
    assert 'KeyError' in line
