"""Export to ONNX and with torch.export, and compilation with dynamic sizes, on small models."""

import numpy as np
import onnxruntime
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from torch._dynamo.backends.common import aot_autograd

from mmpola.apps.publish import export as exporting
from mmpola.apps.publish.export import export
from mmpola.apps.publish.export_model import (
    ExportModel,
    backbone_maps,
    decode_dense_head,
    decodes_as_mmdet,
    export_model,
    raw_outputs,
    replace_upsampling,
)
from mmpola.apps.publish.flops import image_metadata
from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaPVTv2, PolaSwin
from mmpola.engine.training_checkpoint import read_training_checkpoint
from tests.helpers.configs import WIDTHS, shrink_model
from tests.helpers.processes import load_script
from tests.helpers.refusals import assert_lines, refusal
from tests.helpers.training import small_config

pytestmark = pytest.mark.slow

MEAN = torch.tensor([123.0, 116.0, 103.0])
STD = torch.tensor([58.0, 57.0, 57.0])
DEPTHS = {'depths': (2, 1, 1, 1)}
ONE_STAGE = {'attn_types': ('LS', 'L', 'L', 'L'), 'out_indices': (0,)}
LAYER_SCALE = {'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4}
SMALL_SWIN = {'embed_dims': 8, 'num_heads': (2, 2, 4, 4), **DEPTHS}
# Each kind of linear and of softmax attention once; in `swin` in shifted windows of 28 x 28 pixels.
FAMILIES = {
    'swin': lambda: PolaSwin(SMALL_SWIN, **ONE_STAGE),
    'pvt': lambda: PolaPVT({**WIDTHS, **DEPTHS}, **ONE_STAGE),
    'pvt_v2': lambda: PolaPVTv2(WIDTHS, out_indices=(0,)),  # its softmax attention is that of `pvt`
    'deit': lambda: PolaDeiT({'embed_dims': 16, 'depth': 1, 'num_heads': 2}),
    'polaformer_pp': lambda: PolaFormerPP({**WIDTHS, **DEPTHS, **LAYER_SCALE}, **ONE_STAGE),
}


def exported(model, outputs=backbone_maps):
    """A model with its outputs, as `export` takes it."""
    return ExportModel(model, outputs, MEAN, STD, reverse=False)


def small(family):
    """A backbone of `family` in eval mode, whose one-dimensional parameters are random too."""
    model = FAMILIES[family]().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model


@pytest.fixture
def image():
    """An image of random pixels, smoothed by enlarging."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    return Image.fromarray(pixels).resize((160, 120))


def run(path, images):
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    return session.run(None, {'images': images.numpy()})


@pytest.mark.parametrize('family', FAMILIES)
def test_every_family_is_exported_for_every_size(family, image, tmp_path):
    path = tmp_path / 'small.onnx'
    backbone = small(family)
    report = export(exported(backbone), image, path, shape=None)
    assert report.error <= 1e-4
    assert report.inputs == {'images': ['batch', 3, 'height', 'width']}
    images = 255 * torch.rand(3, 3, 70, 90)
    with torch.no_grad():
        expected = backbone((images - MEAN.view(-1, 1, 1)) / STD.view(-1, 1, 1))
    for found, x in zip(run(path, images), expected, strict=True):
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-4 * float(x.abs().max()))


@pytest.mark.parametrize('family', ['swin', 'polaformer_pp'])
def test_torchs_own_call_exports_while_autograd_records(family):
    """With a batch of one and, in `swin`, one window, and outside of `no_grad`."""
    model = small(family)
    x = torch.randn(1, 3, 28, 28)
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    for found, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(
            found, expected.detach(), rtol=0, atol=1e-4 * expected.abs().max().item()
        )


def test_torch_export_serves_every_size_with_one_window_or_several():
    model = small('swin')
    dynamic = torch.export.Dim.DYNAMIC
    shapes = ({0: dynamic, 2: dynamic, 3: dynamic},)
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.randn(2, 3, 60, 90),), dynamic_shapes=shapes
        ).module()
        for size in ((1, 28, 28), (3, 56, 60), (1, 25, 101), (2, 100, 24), (2, 112, 64)):
            x = torch.randn(size[0], 3, *size[1:])
            for found, expected in zip(program(x), model(x), strict=True):
                torch.testing.assert_close(found, expected)


def test_compilation_with_dynamic_sizes_compiles_once():
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return aot_autograd(fw_compiler=lambda module, _: module)(graph, inputs)

    torch._dynamo.reset()
    model = small('swin')
    compiled = torch.compile(model, backend=counting, dynamic=True, fullgraph=True)
    # Without it torch traces twice, because the epsilons of LayerNorms are symbolic at first.
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        for height, width in ((64, 96), (112, 112), (49, 66), (36, 224), (100, 45)):
            x = torch.randn(2, 3, height, width)
            for found, expected in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(found, expected)
    assert len(graphs) == 1


def test_half_precision_stays_finite_where_float16_cannot_hold_the_powers(image, tmp_path):
    backbone = PolaDeiT({'embed_dims': 16, 'depth': 1, 'num_heads': 2}).eval()
    attention = backbone.stages[0].blocks[0].attn
    torch.nn.init.constant_(
        attention.feature_map.power, 5.0
    )  # exponents of 1 + 4 sigmoid(5) = 4.97
    largest = []
    attention.qkvg.register_forward_hook(
        lambda module, inputs, output: largest.append(output.abs().max().item())
    )
    torch.nn.init.normal_(attention.qkvg.weight, 0, 4.0)
    path = tmp_path / 'half.onnx'
    report = export(exported(backbone), image, path, shape=(64, 64), half=True)
    assert largest[0] ** 4.97 > torch.finfo(torch.float16).max
    assert report.error <= 2e-2
    assert path.exists()


def test_what_float16_cannot_hold_is_refused(image, tmp_path):
    backbone = PolaDeiT({'embed_dims': 16, 'depth': 1, 'num_heads': 2}).eval()
    backbone.stem.proj.weight.data.mul_(1e6)
    message = refusal(
        export, exported(backbone), image, tmp_path / 'half.onnx', shape=(64, 64), half=True
    )
    assert '1 x 3 x 64 x 64' in message
    assert 'NaN or infinite values' in message
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_if_the_outputs_differ(image, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, 'TOLERANCE', 0.0)
    message = refusal(export, exported(small('deit')), image, tmp_path / 'out.onnx', shape=(48, 64))
    assert 'relative error of at most 0 ' in message
    assert not list(tmp_path.iterdir())


class BranchesOnPixels(torch.nn.Module):
    """Its path depends on the values of the images."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.scale,) if x.sum() > 0 else (x,)


def test_a_model_that_cannot_be_exported_is_one_line(image, tmp_path):
    model = exported(BranchesOnPixels(), lambda module, x: {'out': module(x)[0]})
    message = refusal(export, model, image, tmp_path / 'out.onnx', shape=(32, 32))
    assert message.startswith('BranchesOnPixels: cannot be exported: ')
    assert '\n' not in message


def test_a_model_that_draws_random_numbers_is_refused(image, tmp_path):
    model = exported(BranchesOnPixels(), lambda module, x: {'out': x + torch.rand_like(x)})
    message = refusal(export, model, image, tmp_path / 'out.onnx', shape=(32, 32))
    assert 'got out that differ' in message
    assert 'random' in message


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_the_program_reads_rgb_and_normalises_it_like_the_models_preprocessor(
    task, request, write_checkpoint, tmp_path
):
    """mmdet's and mmseg's images are loaded as BGR."""
    cfg = Config.fromfile(request.getfixturevalue(task))
    model = export_model(
        cfg,
        read_training_checkpoint(write_checkpoint(cfg.filename, tmp_path / 'random.pth')),
        backbone_only=False,
    )
    model.outputs = lambda module, images: {'images': images}
    rgb = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    expected = model.model.data_preprocessor(
        {'inputs': [rgb.flip(0)], 'data_samples': [image_metadata(64, 64)]}
    )['inputs']
    torch.testing.assert_close(model(rgb[None].float())['images'], expected)


@pytest.mark.parametrize('config', ['retinanet_pola_pvt_t_1x', 'mask_rcnn_pola_swin_t_1x'])
def test_boxes_are_those_that_mmdet_decodes(config, root):
    """All boxes and scores before non-maximum suppression, of two different images."""
    cfg = Config.fromfile(root / 'configs' / f'{config}.py')
    shrink_model(cfg.model)
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model).eval()
    head = model.bbox_head if hasattr(model, 'bbox_head') else model.rpn_head
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 0, 0.05)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        outputs = head(model.extract_feat(images))
    boxes, scores = decode_dense_head(head, outputs)
    priors = torch.cat(
        head.prior_generator.grid_priors([x.shape[-2:] for x in outputs[0]], device='cpu')
    )
    for number in range(2):  # as mmdet's BaseDenseHead does for one image
        logits, deltas = (
            torch.cat([x[number].permute(1, 2, 0).reshape(-1, channels) for x in maps])
            for maps, channels in zip(outputs, (head.cls_out_channels, 4), strict=True)
        )
        torch.testing.assert_close(boxes[number], head.bbox_coder.decode(priors, deltas))
        torch.testing.assert_close(scores[number], logits.sigmoid())
    assert decodes_as_mmdet(head) == hasattr(model, 'bbox_head')  # an RPN selects in its own way
    if hasattr(model, 'bbox_head'):  # a head that decodes in another way exports its maps
        with torch.no_grad():
            maps = raw_outputs(model, images)
        named = {
            f'{what}{i}': x
            for what, found in zip(('scores', 'boxes'), outputs, strict=True)
            for i, x in enumerate(found)
        }
        torch.testing.assert_close(maps, named)


def test_the_head_of_semantic_fpn_is_exported_for_every_size():
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


@pytest.fixture
def classifier(colours, tmp_path):
    """Paths of a small classifier's config and of a checkpoint with random weights."""
    cfg = small_config(colours, tmp_path)
    cfg.model.backbone.out_indices = (0,)
    cfg.dump(tmp_path / 'small.py')
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict()}, tmp_path / 'random.pth')
    return tmp_path / 'small.py', tmp_path / 'random.pth'


def call(monkeypatch, *arguments):
    monkeypatch.setattr('sys.argv', ['export.py', *map(str, arguments)])
    load_script('export').main()


def test_the_script_exports_a_classifier_for_every_size(classifier, tmp_path, monkeypatch, capsys):
    path = tmp_path / 'out.onnx'
    call(monkeypatch, *classifier, path, '--dynamic')
    headline, *lines, last = capsys.readouterr().out.splitlines()
    assert headline.startswith(f'{path}: ') and ' MB, opset ' in headline
    assert lines == ['  images   batch x 3 x height x width', '  logits   batch x 3']
    assert last.startswith('  largest relative error against PyTorch ')
    assert run(path, 255 * torch.rand(3, 3, 40, 33))[0].shape == (3, 3)
    message = refusal(call, monkeypatch, *classifier, path)
    assert message.startswith(f'{path}: ')
    assert '--overwrite' in message


def test_bad_arguments_are_refused_before_any_work(classifier, tmp_path, monkeypatch):
    text = tmp_path / 'text.jpg'
    text.write_text('no image')
    out = tmp_path / 'out.onnx'
    for arguments, start, end in (
        ([tmp_path / 'out.pt'], 'OUT: ', f'got {tmp_path}/out.pt'),
        ([tmp_path / 'no' / 'out.onnx'], f'{tmp_path}/no: ', ''),
        ([out, '--opset', '11'], '--opset: ', 'got 11'),
        ([out, '--shape', '0', '5'], '--shape: ', 'got 0 5'),
        ([out, '--image', text], f'--image: {text}: ', 'not an image'),
        ([out, '--cfg-options', 'test_dataloader.dataset.root=/no/such/folder'], '', '--image'),
    ):
        message = refusal(call, monkeypatch, *classifier, *arguments)
        assert_lines([message], (start, '', end))
        assert '\n' not in message
    assert not out.exists()
