"""The recipes of docs/in_your_own_project.md, read from the page, made small and run."""

import json
import shutil
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import Runner
from torch.testing import assert_close

from mmpola.apps.data_checks import check_data
from mmpola.backbones import PolaSwin, base
from mmpola.engine.advice import training_advice
from tests.helpers.configs import INSTALLED, code_with, config_files, shrink_input, shrink_model

pytestmark = pytest.mark.usefixtures('unformatted_configs')

NEEDS_AN_INSTALLATION = 'my_mask_rcnn.py'
"""This config is tested in test_packaging.py; here it inherits from the repository's configs."""

BOXES_OF_YOUR_OWN = ['my_boxes.py', 'longer_and_larger.py', 'my_coco_boxes.py']
"""These are tested in configs/test_boxes_of_your_own.py."""

MASK_HEAD = 4 * (256 * 256 * 9 + 256) + (256 * 256 * 4 + 256) + (256 * 80 + 80)
"""Parameters of the mask head of mask_rcnn_pola_swin_t_1x, which a Faster R-CNN lacks."""


@pytest.fixture(scope='module')
def folder(root, shapes, tmp_path_factory):
    """A project folder with every config of the page, boxes, and label maps with three values."""
    folder = tmp_path_factory.mktemp('project')
    for name, text in config_files(root).items():
        (folder / name).write_text(text.replace(INSTALLED, f"'{root}/"))
    (folder / 'data').mkdir()
    (folder / 'data' / 'boxes').symlink_to(shapes / 'coco')
    (folder / 'data' / 'labels').mkdir()
    (folder / 'data' / 'labels' / 'images').symlink_to(shapes / 'ade' / 'images')
    for source in (shapes / 'ade' / 'annotations').glob('*/*.png'):
        target = folder / 'data' / 'labels' / 'annotations' / source.parent.name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(target), np.minimum(cv2.imread(str(source), cv2.IMREAD_UNCHANGED), 2))
    write_bands(folder / 'data')
    for split, source in (('train', 'train'), ('val', 'val'), ('test', 'val')):
        write_voc(shapes / 'coco', source, folder / 'data' / 'voc', split)
    return folder


def write_bands(data):
    """Write the images of the label maps with a fourth band."""
    (data / 'bands').mkdir()
    (data / 'bands' / 'annotations').symlink_to(data / 'labels' / 'annotations')
    for source in (data / 'labels' / 'images').glob('*/*.jpg'):
        target = data / 'bands' / 'images' / source.parent.name / f'{source.stem}.png'
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = cv2.imread(str(source))
        cv2.imwrite(str(target), np.dstack([pixels, 255 - pixels[..., :1]]))


def write_voc(coco, source, voc, split):
    """Write a split of boxes in Pascal VOC's format."""
    for name in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (voc / name).mkdir(parents=True, exist_ok=True)
    content = json.loads((coco / f'annotations/instances_{source}2017.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    listed = []
    for image in content['images']:
        name = f'{split}_{image["id"]}'
        listed.append(name)
        shutil.copy(coco / f'{source}2017' / image['file_name'], voc / f'JPEGImages/{name}.jpg')
        objects = ''
        for entry in content['annotations']:
            if entry['image_id'] == image['id']:
                left, top, width, height = entry['bbox']
                objects += (
                    f'<object><name>{names[entry["category_id"]]}</name><bndbox>'
                    f'<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>'
                    f'<xmax>{left + width + 1}</xmax><ymax>{top + height + 1}</ymax>'
                    '</bndbox></object>'
                )
        size = f'<size><width>{image["width"]}</width><height>{image["height"]}</height></size>'
        (voc / f'Annotations/{name}.xml').write_text(f'<a>{size}{objects}</a>')
    (voc / f'ImageSets/Main/{split}.txt').write_text('\n'.join(listed))


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
        cfg.visualizer.name = (
            f'{name} in {tmp_path}'  # MMEngine keeps visualizers by name, one process long
        )
        cfg.work_dir, cfg.log_level = str(tmp_path / name), 'ERROR'
        return cfg

    return load


def train(cfg):
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


def backbone_weights(runner):
    return {
        name: parameter.detach().clone()
        for name, parameter in runner.model.backbone.named_parameters()
    }


def test_every_recipe_is_tested(root):
    assert list(config_files(root)) == [
        *BOXES_OF_YOUR_OWN,
        'three_labels.py',
        'four_bands.py',
        NEEDS_AN_INSTALLATION,
        'faster_rcnn_pola_swin.py',
        'upernet_pola_swin.py',
        'three_classes.py',
        'voc.py',
        'few_images.py',
        'boxes_flipped.py',
        'labels_flipped.py',
        'with_averages.py',
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
def test_three_classes_train_and_evaluate_and_flipped_boxes_are_merged(load):
    runner = train(load('three_classes', evaluate=True))
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4  # and background
    assert len(runner.val_dataloader.dataset.metainfo['classes']) == 3
    labels = torch.cat(
        [item['data_samples'].gt_instances.labels for item in runner.train_dataloader.dataset]
    )
    assert set(labels.tolist()) <= {0, 1, 2}
    assert len(labels.unique()) > 1

    flipped = load('boxes_flipped')
    flipped.load_from = f'{runner.work_dir}/epoch_1.pth'
    tester = Runner.from_cfg(flipped)
    calls = count_calls(tester.model.module)
    assert 'coco/bbox_mAP' in tester.test()
    assert calls == [1, 1] * 4  # every image once unchanged, once mirrored
    assert_close(tester.model.module.state_dict(), runner.model.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
def test_pascal_voc_trains_and_is_evaluated(load):
    cfg = load('voc', evaluate=True)
    assert not any(report.warnings for report in check_data(cfg))
    runner = train(cfg)
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4
    assert len(runner.val_dataloader.dataset) == 4
    assert 'pascal_voc/mAP' in runner.val_loop.run()


@pytest.mark.slow
def test_four_bands_train(load):
    cfg = load('four_bands')
    cfg.model.backbone.in_channels = 4  # which the helper has made small too
    reports = check_data(cfg)
    assert not [line for report in reports for line in report.warnings]
    runner = train(cfg)
    assert runner.model.backbone.stem.proj.in_channels == 4


@pytest.mark.slow
def test_three_labels_train_and_evaluate_and_variants_are_averaged(load):
    runner = train(load('three_labels', evaluate=True))
    assert runner.model.decode_head.conv_seg.out_channels == 3
    dataset = DATASETS.build(runner.cfg.train_dataloader.dataset)
    values = [item['data_samples'].gt_sem_seg.data.unique() for item in dataset]
    assert set(torch.cat(values).tolist()) <= {0, 1, 2, 255}

    flipped = load('labels_flipped')
    flipped.load_from = f'{runner.work_dir}/iter_2.pth'
    tester = Runner.from_cfg(flipped)
    calls = count_calls(tester.model.module)
    assert 'mIoU' in tester.test()
    assert len(calls) == 6 * 4  # three scales of four images, each also mirrored
    assert_close(tester.model.module.state_dict(), runner.model.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
def test_a_few_images_train_masks_of_three_classes(load, folder):
    """The learning rate reaches its value within two epochs of any number of images."""
    cfg = load('few_images', evaluate=True)
    whole = Config.fromfile(folder / 'few_images.py')
    assert training_advice(whole) == []
    cfg.train_cfg.max_epochs = 3
    cfg.train_cfg.val_interval = 3
    runner = train(cfg)
    assert runner.model.roi_head.bbox_head.fc_cls.out_features == 4
    assert runner.model.roi_head.mask_head.conv_logits.out_channels == 3
    rates = runner.message_hub.get_scalar('train/lr').data[0]
    assert rates[0] < 0.1 * rates[-1]
    assert rates[-1] == pytest.approx(1e-4)


def count_calls(model):
    """Return a list that receives the number of images of each call of the model's test_step."""
    calls, step = [], model.test_step

    def test_step(data):
        calls.append(len(data['inputs']))
        return step(data)

    model.test_step = test_step
    return calls


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
def test_inferencers_read_a_training_checkpoint(load, root, shapes, tmp_path):
    """In a new process, which has not imported mmpola; the configs name missing weights."""
    code = f'import sys; sys.path.insert(0, {str(root)!r})\n'
    for inferencer, (name, written, shown, check) in INFERENCERS.items():
        runner = train(load(name))
        cfg = runner.cfg
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='none.pth')
        if name == 'three_classes':
            cfg.model.test_cfg.rcnn.score_thr = 0.0  # untrained scores count too
        cfg.dump(tmp_path / f'{name}.py')
        (tmp_path / 'work_dirs' / name).mkdir(parents=True)
        (tmp_path / 'work_dirs' / name / f'{shown}.pth').symlink_to(
            f'{runner.work_dir}/{written}.pth'
        )
        code += f'{code_with(root, inferencer)}{check}\n'
    (tmp_path / 'photos').mkdir()
    (photo,) = sorted((shapes / 'coco' / 'val2017').iterdir())[:1]
    (tmp_path / 'photos' / 'street.jpg').symlink_to(photo)
    subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, timeout=300)
    assert list((tmp_path / 'predictions' / 'vis').iterdir())


@pytest.mark.slow
def test_the_checkpoint_holds_averages(load):
    runner = train(load('with_averages'))
    saved = torch.load(f'{runner.work_dir}/epoch_1.pth', weights_only=False)
    name = 'stages.0.blocks.0.mlp.fc1.weight'
    trained = runner.model.backbone.get_parameter(name)
    average = saved['state_dict'][f'backbone.{name}']
    assert torch.equal(saved['ema_state_dict'][f'module.backbone.{name}'], trained)
    assert 0 < (average - trained).abs().max() < 1e-3


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
