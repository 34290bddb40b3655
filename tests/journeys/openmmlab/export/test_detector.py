"""Export of whole detectors, with a dense head and with two stages, on small models."""

import copy

import cv2
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope

from mmpola.openmmlab.export import detector_export as publish
from mmpola.openmmlab.export.detector import Detector
from mmpola.openmmlab.export.detector_export import compare_objects, pasted_masks, predict
from mmpola.openmmlab.export.onnx import ExportModel, normalisation
from tests.helpers.pages import code_blocks
from tests.helpers.processes import load_script, run_script
from tests.helpers.refusals import refusal

SIZE = (72, 100)  # not divisible by 32

BACKBONE = {
    'type': 'mmpola.PolaSwin',
    'arch': {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)},
    'attn_types': 'SSSS',
    'out_indices': (1, 2, 3),
}
PREPROCESSOR = {
    'type': 'DetDataPreprocessor',
    'mean': [123.0, 116.0, 103.0],
    'std': [58.0, 57.0, 57.0],
    'bgr_to_rgb': True,
    'pad_size_divisor': 32,
}
NECK = {'type': 'FPN', 'in_channels': [16, 32, 64], 'out_channels': 16, 'num_outs': 3}
TEST_CFG = {
    'nms_pre': 200,
    'min_bbox_size': 0,
    'score_thr': 0.3,
    'nms': {'type': 'nms', 'iou_threshold': 0.5},
    'max_per_img': 20,
}
COMMON = {'num_classes': 3, 'in_channels': 16, 'feat_channels': 16, 'stacked_convs': 1}
GRID = {'type': 'MlvlPointGenerator', 'offset': 0, 'strides': [8, 16, 32]}
SQUARES = {
    'type': 'AnchorGenerator',
    'ratios': [1.0],
    'octave_base_scale': 8,
    'scales_per_octave': 1,
    'strides': [8, 16, 32],
}
HEADS = {
    'RetinaNet': {
        'type': 'RetinaHead',
        'anchor_generator': {**SQUARES, 'ratios': [0.5, 1.0, 2.0], 'octave_base_scale': 4},
        **COMMON,
    },
    'FCOS': {'type': 'FCOSHead', 'strides': [8, 16, 32], 'norm_cfg': {'type': 'BN'}, **COMMON},
    'ATSS': {
        'type': 'ATSSHead',
        'anchor_generator': SQUARES,
        'norm_cfg': {'type': 'BN'},
        **COMMON,
    },
    'RTMDet': {
        'type': 'RTMDetSepBNHead',
        'anchor_generator': GRID,
        'bbox_coder': {'type': 'DistancePointBBoxCoder'},
        'with_objectness': False,
        'exp_on_reg': True,
        'share_conv': True,
        'norm_cfg': {'type': 'BN'},
        'loss_cls': {'type': 'QualityFocalLoss', 'use_sigmoid': True, 'beta': 2.0},
        'loss_bbox': {'type': 'GIoULoss'},
        **COMMON,
    },
}

BBOX_HEAD = {'in_channels': 16, 'fc_out_channels': 32, 'num_classes': 3}
MASK_HEAD = {'in_channels': 16, 'conv_out_channels': 16, 'num_convs': 1, 'num_classes': 3}
TWO_STAGES = {
    'FasterRCNN': ('faster-rcnn_r50_fpn', {'bbox_head': BBOX_HEAD}),
    'MaskRCNN': ('mask-rcnn_r50_fpn', {'bbox_head': BBOX_HEAD, 'mask_head': MASK_HEAD}),
    'CascadeRCNN': ('cascade-mask-rcnn_r50_fpn', {'mask_head': MASK_HEAD}),
}
"""File of mmdet's own model, and changes of its second stage that make it small."""


def two_stage_config(kind, **test_cfg):
    """Return the config of a small detector with two stages.

    Args:
        kind: a key of `TWO_STAGES`.
        test_cfg: changes of `test_cfg.rpn`.
    """
    base, heads = TWO_STAGES[kind]
    model = Config.fromstring(f"_base_ = 'mmdet::_base_/models/{base}.py'", '.py').model
    model.backbone = {**BACKBONE, 'out_indices': (0, 1, 2, 3)}
    model.neck.update(in_channels=[8, 16, 32, 64], out_channels=16)
    model.rpn_head.update(in_channels=16, feat_channels=16)
    model.rpn_head.anchor_generator.scales = [4]
    for name in ('bbox_roi_extractor', 'mask_roi_extractor'):
        if name in model.roi_head:
            model.roi_head[name].out_channels = 16
    for stage in model.roi_head.bbox_head if kind == 'CascadeRCNN' else ():
        stage.update(BBOX_HEAD)
    for name, changes in heads.items():
        model.roi_head[name].update(changes)
    model.test_cfg.rpn.update(nms_pre=100, max_per_img=60, **test_cfg)
    model.test_cfg.rcnn.update(score_thr=0.3, max_per_img=20)
    return model


def detector_config(kind, **test_cfg):
    """Return the config of a small detector."""
    if kind in TWO_STAGES:
        return two_stage_config(kind, **test_cfg)
    return ConfigDict(
        type=kind,
        data_preprocessor=PREPROCESSOR,
        backbone=BACKBONE,
        neck=NECK,
        bbox_head=HEADS[kind],
        test_cfg={**TEST_CFG, **test_cfg},
    )


def small_detector(kind, **test_cfg):
    """Build a detector with random weights whose scores lie on both sides of the threshold."""
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(detector_config(kind, **test_cfg)).eval()
    for part, module in model.named_children():
        for name, parameter in module.named_parameters() if part.endswith('head') else ():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0, 0.1)
            elif part == 'bbox_head' and 'cls' in name and name.endswith('bias'):
                torch.nn.init.constant_(parameter, -1.0)
    return model


def photograph(seed):
    """Return smooth BGR pixels [3, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(1, 3, 5, 7, generator=generator)
    return F.interpolate(coarse, SIZE, mode='bilinear').round()[0]


def exported(model):
    cfg = Config({'model': {'backbone': BACKBONE}})
    mean, std, reverse = normalisation(model, cfg)
    return ExportModel(Detector(model, SIZE), Detector.__call__, mean, std, reverse)


@pytest.mark.parametrize('kind', [*HEADS, *TWO_STAGES])
def test_it_finds_what_mmdet_finds_bit_for_bit(kind):
    model = small_detector(kind)
    wrapped = exported(model)
    for seed in range(3):
        pixels = photograph(seed)
        expected = predict(model, pixels)
        assert len(expected['boxes']) > 3
        with torch.no_grad():
            found = wrapped(pixels.flip(0)[None])
        if 'masks' in expected:
            assert 0 < expected['masks'].float().mean() < 1
            found['masks'] = pasted_masks(model, found, SIZE)
        for name, values in expected.items():
            assert torch.equal(found[name], values), name


@pytest.mark.parametrize('kind', ['RetinaNet', 'FCOS'])
@pytest.mark.parametrize('settings', [{'score_thr': 1.0}, {'min_bbox_size': 15}, {'nms_pre': 7}])
def test_every_threshold_of_the_config(kind, settings):
    model = small_detector(kind, **settings)
    pixels = photograph(0)
    expected = predict(model, pixels)
    with torch.no_grad():
        found = exported(model)(pixels.flip(0)[None])
    assert (len(expected['boxes']) == 0) == ('score_thr' in settings)
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def test_what_is_not_exported_whole():
    init_default_scope('mmdet')
    gfl = HEADS['ATSS'] | {'type': 'GFLHead'}
    config = {**detector_config('ATSS'), 'type': 'GFL', 'bbox_head': gfl}
    message = refusal(Detector, MODELS.build(config).eval(), SIZE)
    assert message == (
        'GFLHead: its objects are computed in a way of its own; export its backbone with --backbone'
    )
    unpadded = {**PREPROCESSOR, 'pad_size_divisor': 1}
    joining = {
        'type': 'CSPNeXtPAFPN',
        'in_channels': [16, 32, 64],
        'out_channels': 16,
        'num_csp_blocks': 1,
    }
    config = {**detector_config('RetinaNet'), 'data_preprocessor': unpadded, 'neck': joining}
    message = refusal(Detector, MODELS.build(config).eval(), SIZE)
    assert message.startswith('RetinaNet: expected sides that fit the model, for example multiples')
    soft = small_detector('RetinaNet', nms={'type': 'soft_nms', 'iou_threshold': 0.5})
    assert refusal(Detector, soft, SIZE).startswith('bbox_head.test_cfg.nms: expected ')


def test_which_second_stages_are_not_exported():
    init_default_scope('mmdet')
    config = detector_config('FasterRCNN')
    config.roi_head.bbox_roi_extractor.type = 'GenericRoIExtractor'
    message = refusal(Detector, MODELS.build(config).eval(), SIZE)
    assert message.startswith('GenericRoIExtractor: regions are pooled in a way of its own; export')
    config = detector_config('FasterRCNN')
    config.test_cfg.rcnn.nms.type = 'soft_nms'
    message = refusal(Detector, MODELS.build(config).eval(), SIZE)
    assert message.startswith("roi_head.test_cfg.nms: expected dict(type='nms', iou_threshold=…)")
    config = detector_config('FasterRCNN')
    del config.rpn_head, config.test_cfg.rpn
    config.type = 'FastRCNN'
    message = refusal(Detector, MODELS.build(config).eval(), SIZE)
    assert message.startswith('FastRCNN: only detectors with one dense head ')
    assert message.endswith('--backbone')


def test_a_detector_is_exported_for_one_size(tiny_config, write_checkpoint, tmp_path):
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth')
    out = tmp_path / 'out.onnx'
    message = refusal_of_the_script(tiny_config, checkpoint, out, '--dynamic')
    assert message.startswith('--dynamic: a detector is exported for one size')
    assert not out.exists()


def refusal_of_the_script(*arguments):
    """Return the message with which tools/export.py ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['export.py', *map(str, arguments)])
        return refusal(load_script('export').main)


def objects(number, **changes):
    """Return objects in a row, with changed values of the first."""
    boxes = torch.arange(number)[:, None] * 20.0 + torch.tensor([0.0, 0, 10, 10])
    scores = 0.9 - 0.1 * torch.arange(number)
    found = {'boxes': boxes, 'scores': scores, 'labels': torch.zeros(number, dtype=torch.long)}
    for name, value in changes.items():
        found[name][0] = value
    return found


def test_objects_are_compared_one_by_one():
    expected = objects(3)
    assert compare_objects(objects(3), expected) == (0.0, 0.0)
    reversed_order = {name: values.flip(0) for name, values in objects(3).items()}
    assert compare_objects(reversed_order, expected) == (0.0, 0.0)
    near = objects(3)
    near['boxes'][1, 0] += 0.005
    near['scores'][2] += 5e-5
    assert compare_objects(near, expected) == pytest.approx((0.005, 5e-5), rel=1e-2)
    others = [objects(2), objects(4), objects(3, labels=1), objects(3, scores=0.91)]
    others += [objects(3, boxes=torch.tensor([0.0, 0, 10, 10.1])), objects(0)]
    for found in others:
        message = refusal(compare_objects, found, expected)
        assert message.startswith('expected the 3 objects that PyTorch finds, got ')


@pytest.fixture
def written_detector(tiny_config, tmp_path):
    """A function that writes the config of a small detector, with the data of `tiny_config`, and
    its checkpoint.
    """

    def write(kind):
        cfg = Config.fromfile(tiny_config)
        cfg.model = detector_config(kind)
        path = tmp_path / f'{kind}.py'
        cfg.dump(path)
        checkpoint = tmp_path / f'{kind}.pth'
        torch.save({'state_dict': small_detector(kind).state_dict()}, checkpoint)
        return path, checkpoint

    return write


def assert_finds_what_pytorch_finds(session, model, pixels):
    """Compare an image that the program was not compared on when it was written.

    These random networks multiply the rounding of float32 more than trained ones do, which agree to
    1e-4 pixels, and by an amount that depends on the processor. So the program may be four times as
    far from the network in float64 as PyTorch in float32 is, or 1e-3 pixels and 1e-5 of a score.
    """
    expected = predict(model, pixels)
    values = session.run(None, {'images': pixels.flip(0)[None].numpy()})
    found = {name: torch.from_numpy(x) for name, x in zip(expected, values, strict=True)}
    exact_model = copy.deepcopy(model).double()
    if 'masks' in expected:
        found['masks'] = pasted_masks(model, found, SIZE)
        exact_model.roi_head.mask_head = None  # mmdet pastes masks in float32 only
    compare_objects(found, expected)  # their masks too
    exact = predict(exact_model, pixels.double())
    box_error, score_error = compare_objects(found, exact)
    rounding_of_boxes, rounding_of_scores = compare_objects(expected, exact)
    assert box_error < max(4 * rounding_of_boxes, 1e-3)
    assert score_error < max(4 * rounding_of_scores, 1e-5)


def run_lines_of_the_page(root, with_masks):
    """Run the lines of the page on the photograph of seed 0; return their names."""
    cv2.imwrite('photo.jpg.png', photograph(0).byte().permute(1, 2, 0).numpy())
    lines, lines_for_masks = code_blocks(root / 'docs' / 'export.md')[:2]
    if with_masks:
        lines = lines[: lines.index('boxes, scores, labels = ')] + lines_for_masks
    names = {}
    exec(lines.replace('photo.jpg', 'photo.jpg.png').replace('(640, 480)', '(100, 72)'), names)
    return names


@pytest.mark.slow
def test_the_script_exports_a_detector(written_detector, root, tmp_path, capsys, monkeypatch):
    """And the page's lines that run the file."""
    config, checkpoint = written_detector('RetinaNet')
    out = tmp_path / 'retinanet.onnx'
    assert run_script('export', config, checkpoint, out, '--shape', *SIZE) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f'{out}: ')
    session = onnxruntime.InferenceSession(out, providers=['CPUExecutionProvider'])
    assert [output.name for output in session.get_outputs()] == ['boxes', 'scores', 'labels']
    model = small_detector('RetinaNet')
    for seed in range(2):
        assert_finds_what_pytorch_finds(session, model, photograph(seed))

    monkeypatch.chdir(tmp_path)
    names = run_lines_of_the_page(root, with_masks=False)
    found = {name: torch.from_numpy(names[name]) for name in ('boxes', 'scores', 'labels')}
    compare_objects(found, predict(model, photograph(0).byte().float()))


@pytest.mark.slow
def test_the_script_exports_a_detector_with_two_stages(
    written_detector, root, tmp_path, monkeypatch
):
    """And the page's lines that draw its masks. In a black image it finds nothing."""
    config, checkpoint = written_detector('MaskRCNN')
    out = tmp_path / 'retinanet.onnx'  # the name on the page
    threshold = 0.85
    option = f'model.test_cfg.rcnn.score_thr={threshold}'
    arguments = [config, checkpoint, out, '--shape', *SIZE, '--cfg-options', option]
    assert run_script('export', *arguments) == 0
    session = onnxruntime.InferenceSession(out, providers=['CPUExecutionProvider'])
    names = [output.name for output in session.get_outputs()]
    assert names == ['boxes', 'scores', 'labels', 'masks']
    model = small_detector('MaskRCNN')
    model.roi_head.test_cfg.score_thr = threshold
    for seed in range(2):
        assert_finds_what_pytorch_finds(session, model, photograph(seed))
    black = torch.zeros(1, 3, *SIZE)
    assert len(predict(model, black[0])['boxes']) == 0
    shapes = [values.shape for values in session.run(None, {'images': black.numpy()})]
    assert shapes == [(0, 4), (0,), (0,), (0, 28, 28)]

    monkeypatch.chdir(tmp_path)
    found = run_lines_of_the_page(root, with_masks=True)['in_image']
    expected = predict(model, photograph(0).byte().float())['masks'].numpy()
    assert 0.1 < expected.mean() < 0.9
    assert (found != expected).mean() < 0.01


def test_nothing_is_written_without_a_comparison(written_detector, tmp_path, monkeypatch):
    config, checkpoint = written_detector('RetinaNet')
    out = tmp_path / 'out.onnx'
    options = ['--shape', *SIZE, '--cfg-options']
    message = refusal_of_the_script(
        config, checkpoint, out, *options, 'model.test_cfg.score_thr=1.0'
    )
    assert message.startswith('the model finds nothing in 50 images of the test data')
    message = refusal_of_the_script(
        config, checkpoint, out, *options, 'test_dataloader.dataset.ann_file=missing.json'
    )
    assert message.startswith('a detector is compared on images of test_dataloader.dataset')
    assert 'missing.json' in message

    class Other:
        """A program that finds one object less."""

        def SerializeToString(self):  # noqa: N802  the name of protobuf
            return b''

        def run(self, names, feeds):
            model = small_detector('RetinaNet')
            found = predict(model, torch.from_numpy(feeds['images'])[0].flip(0))
            return [values[1:].numpy() for values in found.values()]

    other = Other()
    other.model_proto = other
    monkeypatch.setattr(publish, 'record_program', lambda *args, **options: other)
    monkeypatch.setattr(publish, 'open_session', lambda content: other)
    message = refusal_of_the_script(config, checkpoint, out, '--shape', *SIZE)
    assert message.startswith('expected the ') and 'nothing was written' in message
    assert not out.exists()
