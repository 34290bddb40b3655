"""Counts of data sets, and checks that do not depend on the kind of data set."""

import shutil

import pytest
from mmengine.config import Config

from mmpola.apps.data_checks import check_data, print_table
from tests.helpers.refusals import problems, refusal
from tests.helpers.training import small_config


def test_counts(detection, segmentation, annotations, coco, capsys):
    reports = check_data(detection, whole=True) + check_data(segmentation, whole=True)
    assert [(data.splits, data.kind, data.images) for data in reports] == [
        (['train'], 'COCO', 12),
        (['val', 'test'], 'COCO', 4),
        (['train'], 'label maps', 12),
        (['val', 'test'], 'label maps', 4),
    ]
    assert [data.annotations for data in reports[::2]] == [len(annotations['annotations']), 12]
    assert not any(data.warnings for data in reports)
    capsys.readouterr()
    print_table(reports[:1])
    assert capsys.readouterr().out == (
        f'train: COCO: 12 images, {reports[0].annotations} annotations, 6 classes '
        f'({annotations.path}, {coco}/train2017)\n'
    )


def test_class_folders(colours, tmp_path):
    data = shutil.copytree(colours, tmp_path / 'data')
    cfg = small_config(data, tmp_path / 'work')
    assert [(data.splits, data.kind, data.images) for data in check_data(cfg, whole=True)] == [
        (['train'], 'class folders', 24),
        (['val', 'test'], 'class folders', 9),
    ]
    broken = data / 'train/green/5.png'
    broken.write_bytes(b'')
    check_data(cfg, ('train',))  # the fast part opens no image
    (line,) = problems(cfg, whole=True)
    assert line.startswith(f'{data}/train: ')
    assert f'(1): {broken} (' in line
    cfg.train_dataloader.dataset.colour = 1
    (line,) = problems(cfg)
    assert line.startswith('train_dataloader.dataset: ')
    assert 'colour' in line
    shutil.rmtree(data / 'train/green')
    cfg.val_dataloader.dataset.classes = 'gone.txt'
    message = refusal(check_data, cfg, ('train', 'val'))
    assert 'val_dataloader: gone.txt: not found' in message


def test_parts_of_the_same_folder_are_counted_each(colours, tmp_path):
    cfg = small_config(colours, tmp_path / 'work')
    cfg.train_dataloader.dataset.indices = list(range(0, 24, 2))
    cfg.val_dataloader.dataset = {**cfg.train_dataloader.dataset, 'indices': -5}
    train, val = check_data(cfg, ('train', 'val'))
    assert (train.images, val.images) == (12, 5)


def test_one_process_per_machine_opens_the_files(detection, annotations, monkeypatch):
    detection.launcher = 'pytorch'
    monkeypatch.setenv('LOCAL_RANK', '1')
    annotations.path.write_text('')
    (report,) = check_data(detection, ('train',))
    assert not report.is_counted


@pytest.mark.real_data
@pytest.mark.parametrize(
    ('config', 'data', 'counts'),
    [
        ('mask_rcnn_pola_swin_t_1x', 'coco_mini/', [(84, 690, 80), (44, 358, 80)]),
        ('upernet_pola_swin_t_160k', 'ade20k_mini', [(28, 28, 150), (12, 12, 150)]),
    ],
)
def test_real_data_is_valid(root, real_data, config, data, counts):
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.data_root = f'{real_data}/{data}'
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.pop('ann_file', None)
    found = check_data(cfg, whole=True)
    assert [(data.images, data.annotations, len(data.classes)) for data in found] == counts
    assert not any(data.warnings for data in found)


def test_missing_files_are_named(detection, coco):
    detection.train_dataloader.dataset.ann_file = 'none.json'
    detection.train_dataloader.dataset.data_prefix.img = 'none'
    detection.val_evaluator = [dict(type='CocoMetric', ann_file=f'{coco}/other.json')]
    _, *lines, _ = refusal(check_data, detection, ('train', 'val')).splitlines()
    assert [line.strip() for line in lines] == [
        f'train_dataloader: {coco}/none.json: not found',
        f'train_dataloader: {coco}/none: not found',
        f'val_evaluator.0.ann_file: {coco}/other.json: not found',
    ]


@pytest.mark.parametrize('kind', ['detection', 'segmentation'])
def test_the_whole_check_runs_a_sample_through_the_pipeline(kind, request):
    cfg = request.getfixturevalue(kind)
    loading = cfg.train_dataloader.dataset.pipeline.pop(0)
    assert loading.type == 'LoadImageFromFile'
    check_data(cfg, ('train',))
    (line,) = problems(cfg, whole=True)
    assert line.startswith('train_dataloader.dataset: ')
    assert 'KeyError' in line
