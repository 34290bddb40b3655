"""Scripts read images of four bands, 12 bits in 16, by a user's loader, as evaluation does."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS
from PIL import Image

from mmpola.openmmlab.predict.reader import open_reader
from tests.helpers.processes import load_script, run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['tests.helpers.own_loader'])
load = dict(type='TwelveBits')
data = dict(data_root={data!r}, img_suffix='.png')
train_dataloader = dict(dataset=dict(pipeline=[load] + _base_.train_pipeline[1:], **data))
val_dataloader = dict(dataset=dict(pipeline=[load] + _base_.test_pipeline[1:], **data))
test_dataloader = val_dataloader
model = dict(
    backbone=dict(in_channels=4),
    data_preprocessor=dict(mean=[120.0] * 4, std=[60.0] * 4, bgr_to_rgb=False),
)
"""


@pytest.fixture
def four_bands(tiny_segmentation, shapes, write_checkpoint, tmp_path):
    """A config, random weights, and the folder of the validation images."""
    data = tmp_path / 'ade'
    for split in ('training', 'validation'):
        (data / 'images' / split).mkdir(parents=True)
        (data / 'annotations').mkdir(exist_ok=True)
        (data / 'annotations' / split).symlink_to(shapes / 'ade' / 'annotations' / split)
        for path in (shapes / 'ade' / 'images' / split).iterdir():
            pixels = cv2.imread(str(path)).astype(np.uint16) * 16
            bands = np.dstack([pixels, 4080 - pixels[..., 0]])
            cv2.imwrite(str(data / 'images' / split / f'{path.stem}.png'), bands)
    config = tmp_path / 'four.py'
    config.write_text(CONFIG.format(base=str(tiny_segmentation), data=str(data)))
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    return config, checkpoint, data / 'images' / 'validation'


def evaluated(config, checkpoint):
    """Return the paths of the test images, their labels, and what the backbone reads of them."""
    cfg = Config.fromfile(config)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    model = MODELS.build(cfg.model).eval()
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    found = []
    for index in range(len(dataset)):
        batch = pseudo_collate([dataset[index]])
        inputs = model.data_preprocessor(batch)['inputs']
        with torch.no_grad():
            (sample,) = model.test_step(batch)
        path = dataset.get_data_info(index)['img_path']
        found.append((path, sample.pred_sem_seg.data[0].numpy(), inputs))
    return found


def test_every_script_reads_images_as_evaluation_does(four_bands, tmp_path, capsys):
    config, checkpoint, images = four_bands
    (images / 'text.png').write_text('no picture')
    out = tmp_path / 'out'
    assert run_script('predict', config, checkpoint, images, '--out', out) == 0
    printed = capsys.readouterr().out
    assert f'skipped: {images}/text.png: TwelveBits: AssertionError: not a picture\n' in printed
    assert printed.endswith(f'4 images done, 1 skipped; see {out}/vis\n')
    (images / 'text.png').unlink()
    expected = evaluated(config, checkpoint)
    assert len(expected) == 4
    different = set()
    for path, labels, _ in expected:
        name = path.split('/')[-1]
        assert (np.asarray(Image.open(out / 'preds' / name)) == labels).all()
        different |= set(np.unique(labels).tolist())
    assert len(different) > 1  # a network that reads noise predicts something else

    work = tmp_path / 'work'
    assert run_script('test', config, checkpoint, '--work-dir', work) == 0
    metrics = json.loads(next(work.glob('*/*.json')).read_text())
    right = []
    for path, labels, _ in expected:
        truth = cv2.imread(path.replace('/images/', '/annotations/'), -1).astype(int) - 1
        right.append((labels == truth)[truth >= 0])
    assert metrics['aAcc'] == pytest.approx(100 * np.concatenate(right).mean(), abs=0.01)

    path, _, inputs = expected[0]
    explore = load_script('explore')
    cfg = Config.fromfile(config)
    model = MODELS.build(cfg.model).eval()
    scene, _ = explore.Explorer(cfg, model, open_reader(cfg)).open(path)
    assert torch.equal(scene.inputs, inputs)
    layer = ['--layers', 'stages.0.blocks.0.attn']
    arguments = ['analyze', config, checkpoint, path, '--out', tmp_path / 'analysis', *layer]
    assert run_script(*arguments) == 0
    assert run_script('get_flops', config, '--shape', '64', '64') == 0
    onnx = tmp_path / 'four.onnx'
    assert run_script('export', config, checkpoint, onnx, '--backbone', '--shape', '64', '64') == 0


@pytest.mark.parametrize('script', ['predict', 'analyze'])
def test_nothing_that_the_pipeline_can_load(script, four_bands, tmp_path, capsys):
    config, checkpoint, _ = four_bands
    broken = tmp_path / 'broken'
    broken.mkdir()
    for name in ('a.png', 'b.tif'):
        (broken / name).write_text('no picture')
    assert run_script(script, config, checkpoint, broken, '--out', tmp_path / 'out') == 1
    assert '0 images done, 2 skipped' in capsys.readouterr().out


@pytest.mark.parametrize('script', ['predict', 'analyze'])
def test_images_of_other_channels_are_one_line(script, four_bands, shapes, tmp_path, capsys):
    config, checkpoint, _ = four_bands
    photo = next((shapes / 'ade' / 'images' / 'validation').iterdir())
    assert run_script(script, config, checkpoint, photo, '--out', tmp_path / 'out') == 1
    printed = capsys.readouterr().out
    note = 'expected 4 channels (model.backbone.in_channels), got 3 from the step that loads '
    assert f'skipped: {photo}: {note}{photo.name}; ' in printed
