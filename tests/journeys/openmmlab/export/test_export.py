"""Export to ONNX: backbones, classifiers and segmenters, on small models."""

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from mmpola.backbones import PolaFormerPP, PolaSwin
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.export.onnx import (
    ExportModel,
    backbone_maps,
    export,
    export_model,
    replace_upsampling,
)
from mmpola.openmmlab.export.size import evaluated_size
from mmpola.openmmlab.start.fit import read_training_checkpoint
from tests.helpers.configs import ONE_CHANNEL, WIDTHS
from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal
from tests.helpers.training import small_config

pytestmark = pytest.mark.slow

MEAN = torch.tensor([123.0, 116.0, 103.0])
STD = torch.tensor([58.0, 57.0, 57.0])
ONE_STAGE = {'attn_types': ('LS', 'L', 'L', 'L'), 'out_indices': (0,)}
DEPTHS = {'depths': (2, 1, 1, 1)}
LAYER_SCALE = {'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4}


def exported(model, outputs=backbone_maps):
    """A model with its outputs, as `export` takes it."""
    return ExportModel(model, outputs, MEAN, STD, reverse=False)


def randomised(model):
    """A backbone in eval mode, whose one-dimensional parameters are random too."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.eval()


def run(path, images):
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    return session.run(None, {'images': images.numpy()})


def test_a_backbone_is_exported_for_every_size(tmp_path):
    """With the power map, and softmax attention in shifted windows of 28 x 28 pixels."""
    arch = {'embed_dims': 8, 'num_heads': (2, 2, 4, 4), **DEPTHS}
    backbone = randomised(PolaSwin(arch, **ONE_STAGE))
    path = tmp_path / 'small.onnx'
    assert export(exported(backbone), path, shape=None) <= 1e-4
    images = 255 * torch.rand(3, 3, 70, 90)
    with torch.no_grad():
        expected = backbone((images - MEAN.view(-1, 1, 1)) / STD.view(-1, 1, 1))
    for found, x in zip(run(path, images), expected, strict=True):
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-4 * float(x.abs().max()))


def test_the_exponential_map_is_exported(tmp_path):
    backbone = randomised(PolaFormerPP({**WIDTHS, **DEPTHS, **LAYER_SCALE}, **ONE_STAGE))
    assert export(exported(backbone), tmp_path / 'small.onnx', shape=(48, 64)) <= 1e-4


def test_the_script_exports_a_classifier(colours, tmp_path, monkeypatch, capsys):
    cfg = small_config(colours, tmp_path)
    cfg.model.backbone.out_indices = (0,)
    cfg.dump(tmp_path / 'small.py')
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, tmp_path / 'random.pth')
    path = tmp_path / 'out.onnx'
    arguments = ['export.py', tmp_path / 'small.py', tmp_path / 'random.pth', path]
    monkeypatch.setattr('sys.argv', [str(argument) for argument in arguments])
    load_script('export').main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "images of 32 x 32 pixels (width x height), as timm's transforms make them"
    assert lines[1].startswith(f'{path}: ')
    assert run(path, 255 * torch.rand(1, 3, 32, 32))[0].shape == (1, 3)
    assert '--overwrite' in refusal(load_script('export').main)


@pytest.mark.parametrize('head', ['', ONE_CHANNEL])
def test_a_segmenter_is_exported_at_the_size_that_it_is_evaluated_at(
    head, tiny_segmentation, write_checkpoint, shapes, tmp_path, capsys
):
    """The crop of training, 64 x 64, gives other labels than `predict`."""
    with open(tiny_segmentation, 'a') as config:
        config.write("\nmodel['backbone']['attn_types'] = 'SSSS'\n")  # recorded in half the time
        config.write(head)
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth')
    path = tmp_path / 'out.onnx'
    assert run_script('export', tiny_segmentation, checkpoint, path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'images of 96 x 96 pixels (width x height), as the test pipeline makes them'
    rule = 'class 1 is where their sigmoid is above 0.5 (model.decode_head.threshold)'
    assert (rule in lines[1]) == bool(head)
    photo = next((shapes / 'ade' / 'images' / 'validation').glob('*'))
    assert run_script('predict', tiny_segmentation, checkpoint, photo, '--out', tmp_path) == 0
    expected = np.asarray(Image.open(tmp_path / 'preds' / f'{photo.stem}.png'))
    pixels = cv2.resize(cv2.imread(str(photo))[..., ::-1], (96, 96))
    (logits,) = run(path, torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    assert logits.shape[2:] == (24, 24)
    whole = torch.from_numpy(logits)
    for size in ((96, 96), expected.shape):
        whole = torch.nn.functional.interpolate(whole, size, mode='bilinear')
    labels = whole.sigmoid() > 0.5 if head else whole.argmax(1, keepdim=True)
    assert (labels[0, 0].numpy() == expected).mean() > 0.999


@pytest.mark.parametrize(
    ('task', 'expected', 'without_data'),
    [('tiny_config', (120, 144), (120, 160)), ('tiny_segmentation', (128, 160), (128, 160))],
)
def test_the_size_of_images_is_what_the_test_pipeline_makes(
    task, expected, without_data, request, tmp_path
):
    cfg = Config.fromfile(request.getfixturevalue(task))
    dataset = cfg.test_dataloader.dataset
    for step in dataset.pipeline:
        if step.type == 'Resize':
            step.scale = (120, 200)
            step.keep_ratio = True
    size, source = evaluated_size(cfg)
    assert (size, source) == (expected, 'the test pipeline makes them')
    dataset.update(data_root=str(tmp_path))
    size, source = evaluated_size(cfg)
    assert size == without_data
    assert 'a picture of 640 x 480' in source
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'unknown'
    assert refusal(evaluated_size, cfg).startswith('--shape: expected H W')


def test_the_head_of_semantic_fpn_is_recorded_for_every_size():
    init_default_scope('mmseg')
    maps = {
        'in_channels': [4, 4],
        'in_index': [0, 1],
        'feature_strides': [4, 16],
        'norm_cfg': {'type': 'BN'},
    }
    head = MODELS.build(
        {'type': 'FPNHead', 'channels': 4, 'num_classes': 3, 'align_corners': False, **maps}
    ).eval()
    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}

    def pyramid(batch, height, width):
        return [torch.randn(batch, 4, 4 * height, 4 * width), torch.randn(batch, 4, height, width)]

    images = pyramid(1, 5, 3)
    with torch.no_grad():
        expected = head(images)
        replace_upsampling(head)
        program = torch.export.export(head, (pyramid(2, 4, 6),), dynamic_shapes=([sizes, sizes],))
        torch.testing.assert_close(program.module()(images), expected)


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_the_program_reads_rgb_and_normalises_it_like_the_models_preprocessor(
    task, request, write_checkpoint, tmp_path
):
    """mmdet's and mmseg's images are loaded as BGR."""
    cfg = Config.fromfile(request.getfixturevalue(task))
    checkpoint = read_training_checkpoint(write_checkpoint(cfg.filename, tmp_path / 'random.pth'))
    model = export_model(cfg, build_model(cfg), checkpoint, backbone_only=True)
    model.outputs = lambda backbone, images: {'images': images}
    rgb = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    preprocessor = MODELS.build(cfg.model).data_preprocessor
    batch = {'inputs': [rgb.flip(0)], 'data_samples': None}
    torch.testing.assert_close(model(rgb[None].float())['images'], preprocessor(batch)['inputs'])


def test_nothing_is_written_if_the_outputs_differ(tmp_path):
    model = exported(torch.nn.Identity(), lambda module, x: {'out': x + torch.rand_like(x)})
    message = refusal(export, model, tmp_path / 'out.onnx', shape=(32, 32))
    assert message.startswith('out of [1, 3, 32, 32]: expected a relative error of at most 0.0001')
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_exported_is_one_line(tmp_path):
    def branch_on_pixels(module, x):
        return {'out': x if x.sum() > 0 else -x}

    model = exported(torch.nn.Identity(), branch_on_pixels)
    message = refusal(export, model, tmp_path / 'out.onnx', shape=(32, 32))
    assert message.startswith('Identity: cannot be exported: ')
    assert '\n' not in message
