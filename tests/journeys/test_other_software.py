"""The recipes of docs/other_software.md run where their packages are installed.

The workflow `neighbours.yml` installs them once a week. `TIMM_SCRIPTS` names a folder with timm's
train.py and validate.py, which are not in its package.
"""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import cv2
import numpy as np
import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

import mmpola.timm  # noqa: F401
from tests.helpers.pages import block_with, code_blocks, needs

PAGE = 'docs/other_software.md'
SIZE = 64


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setenv('YOLO_OFFLINE', '1')


@pytest.fixture
def blocks(root):
    """The code of the page, in its order."""
    return code_blocks(root / PAGE)


def model_of(blocks, name, folder):
    """Build the model of a config of the page, with random weights."""
    (folder / name).write_text(block_with(blocks, f'# {name}\n'))
    cfg = Config.fromfile(folder / name)
    cfg.model.backbone.init_cfg = None
    if 'data_preprocessor' in cfg:  # mmpretrain's; the runner hands it to the model
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    init_default_scope(cfg.default_scope)
    return cfg, MODELS.build(cfg.model)


def train_step(model, data):
    """Run a step on data as its loader gives it; return the loss."""
    data = model.data_preprocessor(data, training=True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing
    return loss


def test_mmpretrain(blocks, tmp_path):
    needs('mmpretrain')
    structures = import_module('mmpretrain.structures')
    import_module('mmpretrain.engine')  # registers its constructor
    cfg, model = model_of(blocks, 'mmpretrain_pola_swin.py', tmp_path)
    images = torch.randint(256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    samples = [structures.DataSample().set_gt_label(label) for label in (1, 2)]
    assert train_step(model, {'inputs': images, 'data_samples': samples}).isfinite()
    model.eval()
    with torch.no_grad():
        (found, _) = model.test_step({'inputs': images, 'data_samples': samples})
    assert found.pred_score.shape == (1000,)

    wrapper = dict(cfg.optim_wrapper)
    wrapper['constructor'] = 'LearningRateDecayOptimWrapperConstructor'
    wrapper['paramwise_cfg'] = {'layer_decay_rate': 0.8}
    groups = build_optim_wrapper(model, wrapper).optimizer.param_groups
    rates = {group['param_name']: group['lr'] for group in groups}
    first = rates['backbone.stem.proj.weight']
    last = rates['backbone.stages.3.blocks.1.mlp.fc1.weight']
    assert first < 0.1 * last < rates['head.fc.weight']


def test_mmpose(blocks, tmp_path):
    needs('mmpose')
    packed = import_module('mmpose.testing').get_packed_inputs
    _, model = model_of(blocks, 'mmpose_pola_swin.py', tmp_path)
    assert train_step(model, packed(2)).isfinite()
    model.eval()
    with torch.no_grad():
        (found,) = model.test_step(packed(1))
    assert found.pred_instances.keypoints.shape == (1, 17, 2)


def test_mmpose_rtmpose_and_vitpose(blocks, tmp_path):
    needs('mmpose')
    packed = import_module('mmpose.testing').get_packed_inputs
    other = {
        'rtmpose': 'mmpose::body_2d_keypoint/rtmpose/coco/rtmpose-s_8xb256-420e_coco-256x192.py',
        'vitpose': 'mmpose::body_2d_keypoint/topdown_heatmap/coco/'
        'td-hm_ViTPose-small_8xb64-210e_coco-256x192.py',
    }
    text = block_with(blocks, '# mmpose_pola_swin.py\n')
    (base,) = re.findall(r"_base_ = '(.*)'", text)
    rtmpose = tmp_path / 'rtmpose.py'
    rtmpose.write_text(text.replace(base, other['rtmpose']))
    vitpose = tmp_path / 'vitpose.py'
    vitpose.write_text(
        f'_base_ = {other["vitpose"]!r}\n'
        "model = dict(backbone=dict(_delete_=True, type='mmpola.PolaDeiT', arch='small', "
        'pretrain_img_size=(256, 192)))\n'
    )
    for path in (rtmpose, vitpose):
        cfg = Config.fromfile(path)
        cfg.model.backbone.init_cfg = None
        init_default_scope(cfg.default_scope)
        model = MODELS.build(cfg.model)
        assert train_step(model, packed(2)).isfinite()


def test_mmyolo(blocks, tmp_path):
    needs('mmyolo')  # the page says which line of its version check to change
    _, model = model_of(blocks, 'mmyolo_pola_swin.py', tmp_path)
    images = torch.randint(256, (2, 3, 128, 128), dtype=torch.uint8)
    boxes = torch.tensor([[0, 1, 10.0, 10.0, 60.0, 60.0], [1, 2, 30.0, 20.0, 90.0, 100.0]])
    data = {'inputs': images, 'data_samples': {'bboxes_labels': boxes}}
    assert train_step(model, data).isfinite()


@pytest.mark.slow
def test_timms_scripts(root, tmp_path):
    scripts = os.environ.get('TIMM_SCRIPTS')
    if not scripts:
        pytest.skip('TIMM_SCRIPTS names no folder')
    for split in ('train', 'validation'):
        for label in ('a', 'b'):
            write_pictures(tmp_path / 'folders' / split / label, 2)
    text = (root / PAGE).read_text()
    small = ['--img-size', '64', '--batch-size', '2', '--device', 'cpu', '--workers', '0']
    train = command(text, 'python train.py')
    train[1] = f'{scripts}/train.py'
    train[train.index('FOLDER')] = 'folders'
    train.remove('--pretrained')
    train += [*small, '--epochs', '1']
    run(train, tmp_path)
    validate = command(text, "python -c 'import mmpola.timm")
    validate[2] = validate[2].replace('validate.py', f'{scripts}/validate.py')
    validate[validate.index('FOLDER')] = 'folders'
    (best,) = (tmp_path / 'output' / 'train').glob('*/model_best.pth.tar')
    validate[-1] = str(best)
    output = run([*validate, *small], tmp_path)
    assert '"top1"' in output


def command(text, start):
    """Return the words of the page's command that begins so."""
    line = text[text.index(start) :].partition('\n```')[0]
    return shlex.split(line.replace('\\\n', ' '))


def run(words, folder):
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def write_pictures(folder, number):
    folder.mkdir(parents=True)
    for index in range(number):
        pixels = np.random.default_rng(index).integers(0, 255, (80, 80, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'{index}.jpg'), pixels)


def test_transformers(blocks, tmp_path, monkeypatch):
    """With random weights in the place of the authors' file."""
    needs('transformers')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'checkpoints').mkdir()
    weights = timm.create_model('pola_swin_tiny').state_dict()
    torch.save({'model': weights}, 'checkpoints/pola_swin_t.pth')
    names = {'__name__': 'page'}
    exec(block_with(blocks, 'UperNetConfig('), names)
    assert names['masks'].shape == (1, 5, 128, 160)
    assert names['boxes'].shape == (1, 100, 4)
    assert names['rt_boxes'].shape == (1, 300, 4)
    before = names['rt_detr'](names['images']).logits
    exec(block_with(blocks, 'class LinearSelfAttention'), names)
    assert names['logits'].shape == before.shape
    assert not torch.equal(names['logits'], before)


def test_segmentation_models_pytorch(blocks):
    smp = needs('segmentation_models_pytorch')
    names = {'__name__': 'page'}
    exec(block_with(blocks, 'segmentation_models_pytorch as smp'), names)
    assert names['masks'].shape == names['bottleneck_masks'].shape == (2, 3, 256, 256)
    images = torch.randn(2, 3, SIZE, SIZE)
    for kind in ('FPN', 'UPerNet', 'Segformer', 'DPT'):
        network = getattr(smp, kind)('tu-pola_swin_tiny', encoder_weights=None, classes=3).eval()
        assert network(images).shape == (2, 3, SIZE, SIZE), kind


def test_torchvision(blocks):
    names = {'__name__': 'page'}
    exec(block_with(blocks, 'FasterRCNN'), names)
    assert {'boxes', 'labels', 'scores'} <= names['found'].keys()


@pytest.mark.slow
def test_ultralytics(root, blocks, tmp_path, monkeypatch):
    """The whole recipe, from a YOLO whose random weights stand for the pretrained ones."""
    ultralytics = needs('ultralytics')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path('pola_block.py').write_text(block_with(blocks, '# pola_block.py\n'))
    source = Path(ultralytics.__file__).parent / 'cfg' / 'models' / '11' / 'yolo11.yaml'
    lines = source.read_text().rstrip().splitlines()
    (added,) = re.findall(r'^```yaml\n(.*?)^```', (root / PAGE).read_text(), re.M | re.S)
    Path('yolo11n-pola.yaml').write_text('\n'.join(lines[:-1]) + '\n' + added)
    ultralytics.YOLO('yolo11n.yaml').save('yolo11n.pt')
    for split in ('train', 'val'):
        write_pictures(tmp_path / 'images' / split, 2)
        labels = tmp_path / 'labels' / split
        labels.mkdir(parents=True)
        for index in range(2):
            (labels / f'{index}.txt').write_text('0 0.5 0.5 0.4 0.4\n')
    Path('data.yaml').write_text(
        f'path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: {{0: noise}}\n'
    )
    (tmp_path / 'images' / 'train' / '0.jpg').rename('photo.jpg')
    write_pictures(tmp_path / 'images' / 'more', 1)

    monkeypatch.setitem(ultralytics.cfg.DEFAULT_CFG_DICT, 'workers', 0)
    recipe = block_with(blocks, '# train_pola_yolo.py\n')
    names = {'__name__': 'page'}
    exec(recipe.replace('imgsz=256)', "imgsz=64, workers=0, plots=False, device='cpu')"), names)
    assert len(names['results']) == 2
    block = names['best'].model.model[23]
    assert type(block).__name__ == 'PolaBlock'
    assert block.scale.abs().max() > 0  # it was trained
    start = torch.load('start.pt', weights_only=False)['model'].float().eval()
    pretrained = torch.load('yolo11n.pt', weights_only=False)['model'].float().eval()
    image = torch.rand(1, 3, SIZE, SIZE)
    torch.testing.assert_close(start(image)[0], pretrained(image)[0], rtol=1e-4, atol=1e-4)
