"""The first lines of docs/in_your_own_project.md train and evaluate on boxes of VOC and COCO."""

import json
import math

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmpola.apps.data_checks import check_data
from tests.helpers.configs import INSTALLED, config_files

pytestmark = pytest.mark.usefixtures('unformatted_configs')

ANNOTATION = """<annotation><size><width>96</width><height>80</height><depth>3</depth></size>
{objects}</annotation>"""
OBJECT = """<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{box[0]}</xmin>
<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"""
BOXES = [
    ('RBC', (11, 11, 41, 51)),
    ('WBC', (50, 20, 90, 70)),
    ('Platelets', (20, 55, 44, 75)),
]
POINT = ('RBC', (60, 30, 60, 30))
"""A box without extent, as BCCD has one in each of two splits."""

SMALL = """
model['backbone'] = dict(
    arch=dict(embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 4)), pretrain_img_size=64
)
model['neck'] = dict(in_channels=[8, 16, 32, 64])
train_dataloader.update(num_workers=0, persistent_workers=False)
val_dataloader.update(num_workers=0, persistent_workers=False)
test_dataloader.update(num_workers=0)
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
"""Added to the lines of the page, for two steps."""


def write_voc(folder, objects):
    """Write a data set of four photographs in Pascal VOC's layout."""
    for name in ('Annotations', 'ImageSets/Main', 'JPEGImages'):
        (folder / name).mkdir(parents=True)
    names = [f'photo_{i}' for i in range(4)]
    pixels = np.random.default_rng(0).integers(0, 255, (80, 96, 3), np.uint8)
    for name in names:
        Image.fromarray(pixels).save(folder / 'JPEGImages' / f'{name}.jpg')
        text = ''.join(OBJECT.format(name=label, box=box) for label, box in objects)
        annotation = ANNOTATION.format(objects=text)
        (folder / 'Annotations' / f'{name}.xml').write_text(annotation)
    for split in ('train', 'val', 'test'):
        (folder / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(names) + '\n')


def lines_of(root, name):
    """Return a config of the page, which inherits from the repository's config."""
    text = config_files(root)[name]
    assert len([line for line in text.splitlines() if line]) <= 11
    return text.replace(INSTALLED, f"'{root}/")


def run(text, folder, monkeypatch):
    """Train and evaluate a config for an epoch; return its losses and the metrics."""
    monkeypatch.chdir(folder)
    (folder / 'my_boxes.py').write_text(text + SMALL)
    cfg = Config.fromfile('my_boxes.py')
    cfg.work_dir = str(folder / 'work')
    cfg.visualizer.name = str(folder)  # MMEngine keeps visualizers by name, one process long
    runner = Runner.from_cfg(cfg)
    runner.train()
    (scalars,) = (folder / 'work').glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    losses = [line['loss'] for line in lines if 'loss' in line]
    assert len(list((folder / 'work').glob('best_*.pth'))) == 1
    return cfg, losses, lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize('objects', [BOXES, [*BOXES, POINT]], ids=['boxes', 'and a point'])
def test_voc(objects, root, tmp_path, monkeypatch):
    write_voc(tmp_path / 'data' / 'bccd', objects)
    _, losses, metrics = run(lines_of(root, 'my_boxes.py'), tmp_path, monkeypatch)
    assert losses and all(math.isfinite(loss) for loss in losses)
    precisions = {f'coco/{name}_precision' for name, _ in BOXES}
    assert {*precisions, 'coco/bbox_mAP_50'} <= metrics.keys()


@pytest.mark.slow
def test_coco(root, shapes, tmp_path, monkeypatch):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'boxes').symlink_to(shapes / 'coco')
    text = lines_of(root, 'my_coco_boxes.py')
    cfg, losses, metrics = run(text, tmp_path, monkeypatch)
    assert cfg.train_dataloader.dataset.type == 'CocoDataset'
    assert losses and all(math.isfinite(loss) for loss in losses)
    precisions = {f'coco/{name}_precision' for name in ('circle', 'square', 'triangle')}
    assert precisions <= metrics.keys()


def test_longer_and_larger(root, tmp_path):
    """The last epoch ends the schedule, and every split is resized to the larger size."""
    for name in ('my_boxes.py', 'longer_and_larger.py'):
        (tmp_path / name).write_text(lines_of(root, name))
    cfg = Config.fromfile(tmp_path / 'longer_and_larger.py')
    schedule = cfg.param_scheduler[1]
    assert [cfg.train_cfg.max_epochs, schedule.end, schedule.T_max] == [20, 20, 20]
    assert scales(cfg) == [(512, 384)] * 3


def test_the_published_boxes_of_bccd(root, real_data, tmp_path, monkeypatch):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'bccd').symlink_to(real_data / 'bccd')
    monkeypatch.chdir(tmp_path)
    cfg = Config.fromfile(root / 'configs' / 'faster_rcnn_pola_swin_small.py')
    check_data(cfg, splits=('train', 'val'))
    init_default_scope(cfg.default_scope)
    boxes = {}
    for split in ('train', 'val', 'test'):
        dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
        boxes[split] = sum(len(dataset.get_data_info(i)['instances']) for i in range(len(dataset)))
    assert boxes == {'train': 2805, 'val': 1138, 'test': 945}


def test_the_docstring_says_how_to_read_larger_images(root, tmp_path):
    path = root / 'configs' / 'faster_rcnn_pola_swin_small.py'
    lines = [line.strip() for line in path.read_text().splitlines() if '    _base_.' in line]
    assert len(lines) == 3
    (tmp_path / 'larger.py').write_text('\n'.join([f'_base_ = {str(path)!r}', *lines]))
    cfg = Config.fromfile(tmp_path / 'larger.py')
    assert scales(cfg) == [(512, 384)] * 3


def scales(cfg):
    """Return what the splits are resized to."""
    found = []
    for split in ('train', 'val', 'test'):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        found += [step.scale for step in pipeline if step.type == 'Resize']
    return found
