"""The recipes of docs/in_your_own_project.md, read from the page, made small and run."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import Runner

from mmpola.backbones import PolaSwin, base
from mmpola.openmmlab.checks import check_data
from mmpola.openmmlab.run.advice import length_advice
from tests.helpers.configs import INSTALLED, config_files, shrink_input, shrink_model
from tests.helpers.pages import block_with, code_blocks
from tests.helpers.project import BCCD, write_data
from tools.split import main as split_main

pytestmark = pytest.mark.usefixtures('unformatted_configs')

NEEDS_AN_INSTALLATION = 'my_mask_rcnn.py'
"""This config is tested in test_packaging.py; here it inherits from the repository's configs."""

MASK_HEAD = 4 * (256 * 256 * 9 + 256) + (256 * 256 * 4 + 256) + (256 * 80 + 80)
"""Parameters of the mask head of mask_rcnn_pola_swin_t_1x, which a Faster R-CNN lacks."""


@pytest.fixture(scope='module')
def folder(root, shapes, tmp_path_factory):
    """A project folder with every config of the page, boxes, and label maps with three values."""
    folder = tmp_path_factory.mktemp('project')
    for name, text in config_files(root).items():
        (folder / name).write_text(text.replace(INSTALLED, f"'{root}/"))
    write_data(folder / 'data', shapes)
    return folder


@pytest.fixture
def load(folder, tmp_path, monkeypatch):
    """A function that reads a config of the project and makes it small: two steps, no
    evaluation.
    """
    monkeypatch.chdir(folder)

    def load(name, evaluate=False):
        cfg = Config.fromfile(f'{name}.py')
        shrink_model(cfg.model.get('module', cfg.model))
        shrink_input(cfg)
        cfg.train_dataloader.batch_size = 2
        if cfg.default_scope == 'mmdet':
            cfg.train_dataloader.dataset.indices = 4
            cfg.train_cfg.update(max_epochs=1, val_interval=1 if evaluate else 2)
        else:
            cfg.train_cfg.update(max_iters=2, val_interval=2 if evaluate else 3)
        cfg.default_hooks.logger.interval = 1
        cfg.data_checks = dict(skip=['schedule-length'])  # of a whole run
        cfg.work_dir, cfg.log_level = str(tmp_path / name), 'ERROR'
        return cfg

    return load


def train(cfg):
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


@pytest.fixture(scope='module')
def trained():
    """Runners by name, of configs that several tests train and evaluate."""
    return {}


@pytest.fixture
def train_once(load, trained):
    """A function that returns the runner of a config, trained by the first test that asks."""

    def train_once(name):
        if name not in trained:
            trained[name] = train(load(name, evaluate=True))
        return trained[name]

    return train_once


def backbone_weights(runner):
    return {
        name: parameter.detach().clone()
        for name, parameter in runner.model.backbone.named_parameters()
    }


def test_every_recipe_is_tested(root):
    files = config_files(root)
    for name in ('my_boxes.py', 'my_coco_boxes.py'):
        assert len([line for line in files[name].splitlines() if line]) <= 11
    assert list(files) == [
        'my_boxes.py',
        'longer_and_larger.py',
        'my_coco_boxes.py',
        'my_masks.py',
        'my_labels.py',
        'three_labels.py',
        'four_bands.py',
        NEEDS_AN_INSTALLATION,
        'faster_rcnn_pola_swin.py',
        'upernet_pola_swin.py',
        'three_classes.py',
        'voc.py',
        'few_images.py',
        'less_memory.py',
        'frozen.py',
        'layer_decay.py',
    ]


@pytest.mark.parametrize(
    ('name', 'classes', 'parameters'),
    [('faster_rcnn_pola_swin', 80, 48_791_944 - MASK_HEAD), ('upernet_pola_swin', 150, 60_939_204)],
)
def test_five_lines_replace_the_backbone(name, classes, parameters, folder, monkeypatch):
    """At full size on the meta device; test_readme.py compares the rules of weight decay."""
    monkeypatch.chdir(folder)
    cfg = Config.fromfile(f'{name}.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert isinstance(model.backbone, PolaSwin)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert (model.roi_head.bbox_head if classes == 80 else model.decode_head).num_classes == classes


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'classes'),
    [('my_boxes', BCCD.values()), ('my_coco_boxes', BCCD)],
)
def test_boxes_train_and_are_evaluated_by_class(name, classes, load):
    cfg = load(name, evaluate=True)
    check_data(cfg, whole=True)
    runner = train(cfg)
    logged = runner.message_hub.log_scalars
    assert np.isfinite(logged['train/loss'].data[0]).all()
    assert {f'val/coco/{name}_precision' for name in classes} <= logged.keys()
    assert len(list(Path(runner.work_dir).glob('best_*.pth'))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'metric'), [('my_masks', 'coco/segm_mAP'), ('my_labels', 'mIoU')])
def test_masks_and_label_maps_train_and_are_evaluated(name, metric, load):
    runner = train(load(name, evaluate=True))
    assert np.isfinite(runner.message_hub.log_scalars['train/loss'].data[0]).all()
    assert f'val/{metric}' in runner.message_hub.log_scalars


def scales(cfg):
    """Return what the splits are resized to."""
    found = []
    for split in ('train', 'val', 'test'):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        found += [step.scale for step in pipeline if step.type == 'Resize']
    return found


def test_longer_and_larger(folder, monkeypatch):
    """The last epoch ends the schedule, and every split is resized to the larger size."""
    monkeypatch.chdir(folder)
    cfg = Config.fromfile('longer_and_larger.py')
    schedule = cfg.param_scheduler[1]
    assert [cfg.train_cfg.max_epochs, schedule.end, schedule.T_max] == [20, 20, 20]
    assert scales(cfg) == [(512, 384)] * 3


def test_the_docstring_says_how_to_read_larger_images(root, tmp_path):
    path = root / 'configs' / 'faster_rcnn_pola_swin_small.py'
    lines = [line.strip() for line in path.read_text().splitlines() if '    _base_.' in line]
    assert len(lines) == 3
    (tmp_path / 'larger.py').write_text('\n'.join([f'_base_ = {str(path)!r}', *lines]))
    assert scales(Config.fromfile(tmp_path / 'larger.py')) == [(512, 384)] * 3


@pytest.mark.slow
def test_three_classes_train_and_evaluate(train_once):
    runner = train_once('three_classes')
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4  # and background
    assert len(runner.val_dataloader.dataset.metainfo['classes']) == 3
    labels = torch.cat(
        [item['data_samples'].gt_instances.labels for item in runner.train_dataloader.dataset]
    )
    assert set(labels.tolist()) <= {0, 1, 2}
    assert len(labels.unique()) > 1


@pytest.mark.slow
def test_pascal_voc_trains_and_is_evaluated(load):
    cfg = load('voc', evaluate=True)
    assert not check_data(cfg).found
    runner = train(cfg)
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4
    assert len(runner.val_dataloader.dataset) == 4
    assert 'pascal_voc/mAP' in runner.val_loop.run()


def test_pictures_are_divided(root, tmp_path, monkeypatch):
    """By the page's commands, each beside what its comment says."""
    monkeypatch.chdir(tmp_path)
    for folder in ('photos', 'animals/JPEGImages', 'listed/images', 'flowers/rose', 'flowers/lily'):
        Path('data', folder).mkdir(parents=True)
        for number in range(10):
            Path('data', folder, f'{number}.jpg').touch()
    images = [{'id': number, 'file_name': f'{number}.jpg'} for number in range(10)]
    Path('data/photos/all.json').write_text(json.dumps({'images': images, 'annotations': []}))
    blocks = code_blocks(root / 'docs' / 'in_your_own_project.md', 'bash')
    block = block_with(blocks, 'mmpola split data/photos')
    commands = [line.split() for line in block.splitlines() if line.startswith('mmpola')]
    for _, _, *words in commands:
        monkeypatch.setattr('sys.argv', ['split.py', *words])
        split_main()
    assert json.loads(Path('data/photos/train.json').read_text()).keys() == {
        'images',
        'annotations',
    }
    for folder in ('animals/ImageSets/Main', 'listed'):
        assert len(Path('data', folder, 'train.txt').read_text().split()) == 8
        assert len(Path('data', folder, 'val.txt').read_text().split()) == 2
    for name in ('rose', 'lily'):
        assert len(list(Path('data/finetune/train', name).iterdir())) == 8
        assert len(list(Path('data/finetune/val', name).iterdir())) == 2


@pytest.mark.slow
def test_four_bands_train(load):
    cfg = load('four_bands')
    cfg.model.backbone.in_channels = 4  # which the helper has made small too
    assert not check_data(cfg).found
    runner = train(cfg)
    assert runner.model.backbone.stem.proj.in_channels == 4


@pytest.mark.slow
def test_three_labels_train_and_evaluate(train_once):
    runner = train_once('three_labels')
    assert runner.model.decode_head.conv_seg.out_channels == 3
    dataset = DATASETS.build(runner.cfg.train_dataloader.dataset)
    values = [item['data_samples'].gt_sem_seg.data.unique() for item in dataset]
    assert set(torch.cat(values).tolist()) <= {0, 1, 2, 255}


@pytest.mark.slow
def test_a_few_images_train_masks_of_three_classes(load, folder):
    """The learning rate reaches its value within two epochs of any number of images."""
    cfg = load('few_images', evaluate=True)
    whole = Config.fromfile(folder / 'few_images.py')
    assert length_advice(whole) == []
    cfg.train_cfg.max_epochs = 3
    cfg.train_cfg.val_interval = 3
    runner = train(cfg)
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4
    assert runner.model.roi_head.mask_head.conv_logits.out_channels == 3
    rates = runner.message_hub.get_scalar('train/lr').data[0]
    assert rates[0] < 0.1 * rates[-1]
    assert rates[-1] == pytest.approx(1e-4)


INFERENCERS = {
    'DetInferencer': (
        'three_classes',
        'epoch_1',
        'epoch_12',
        'assert boxes.shape[1] == 4 and len(boxes)',
    ),
    'MMSegInferencer': (
        'three_labels',
        'iter_2',
        'iter_4000',
        'assert labels.shape[1:] == (80, 96)',
    ),
}
"""Inferencer -> config, written checkpoint, checkpoint in the page, check of the results."""


@pytest.mark.slow
def test_inferencers_read_a_training_checkpoint(train_once, root, shapes, tmp_path):
    """In a new process, which has not imported mmpola; the configs name missing weights."""
    code = f'import sys; sys.path.insert(0, {str(root)!r})\n'
    blocks = code_blocks(root / 'docs' / 'in_your_own_project.md')
    for inferencer, (name, written, shown, check) in INFERENCERS.items():
        runner = train_once(name)
        cfg = copy.deepcopy(runner.cfg)
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='none.pth')
        if name == 'three_classes':
            cfg.model.test_cfg.rcnn.score_thr = 0.0  # untrained scores count too
        cfg.dump(tmp_path / f'{name}.py')
        (tmp_path / 'work_dirs' / name).mkdir(parents=True)
        (tmp_path / 'work_dirs' / name / f'{shown}.pth').symlink_to(
            f'{runner.work_dir}/{written}.pth'
        )
        code += f'{block_with(blocks, inferencer)}{check}\n'
    (tmp_path / 'photos').mkdir()
    (photo,) = sorted((shapes / 'coco' / 'val2017').iterdir())[:1]
    (tmp_path / 'photos' / 'street.jpg').symlink_to(photo)
    subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, timeout=300)
    assert list((tmp_path / 'predictions' / 'vis').iterdir())


@pytest.mark.slow
def test_activations_are_recomputed(load, monkeypatch):
    calls = []

    def recompute(block, *args, **kwargs):
        calls.append(block)
        return torch.utils.checkpoint.checkpoint(block, *args, **kwargs)

    monkeypatch.setattr(base, 'checkpoint', recompute)
    runner = train(load('less_memory'))
    blocks = [stage.blocks[0] for stage in runner.model.backbone.stages]
    assert calls == blocks * 2  # steps


@pytest.mark.slow
def test_frozen_stages_do_not_change(load):
    runner = Runner.from_cfg(load('frozen'))
    before = backbone_weights(runner)
    runner.train()
    moved = {
        name
        for name, weights in backbone_weights(runner).items()
        if not torch.equal(weights, before[name])
    }
    frozen = {
        name
        for name in before
        if name.startswith(('stem.', 'stages.0.', 'stages.1.', 'norms.0.', 'norms.1.'))
    }
    assert moved == before.keys() - frozen


def test_learning_rates_by_layer(load):
    """Four blocks, rate 0.8; the weight-decay rules of the inherited config still apply."""
    cfg = load('layer_decay')
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    settings = {names[id(group['params'][0])]: group for group in groups}
    expected = {
        'backbone.stem.proj.weight': (0.8**5, 1e-4),
        'backbone.stages.0.blocks.0.attn.feature_map.power': (0.8**4, 0.0),
        'backbone.stages.3.blocks.0.mlp.fc1.weight': (0.8, 1e-4),
        'backbone.norms.3.weight': (1.0, 0.0),
        'roi_head.bbox_head.fc_cls.weight': (1.0, 1e-4),
    }
    for name, (factor, decay) in expected.items():
        assert settings[name]['lr'] == pytest.approx(1e-4 * factor)
        assert settings[name]['weight_decay'] == decay
