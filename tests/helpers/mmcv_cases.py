"""Calls of mmcv's operators, and training steps of detectors and segmenters, that were recorded.

    python -m tests.helpers.mmcv_cases

writes tests/golden/mmcv.pt. It must run with a compiled mmcv 2.1.0, which
`mmpola.openmmlab.mmcv.operators` replaces.
"""

import sys

import torch
from mmcv import ops
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from tests.helpers import ROOT
from tests.helpers.configs import shrink_detector, shrink_model

RECORD = ROOT / 'tests' / 'golden' / 'mmcv.pt'

STEPS = (
    'retinanet_pola_pvt_t_1x',
    'mask_rcnn_pola_swin_t_1x',
    'cascade_mask_rcnn_pola_swin_t_1x',
    'dino_pola_swin_t_1x',
    'rtmdet_l_pola_swin_t_100e',
    'mask2former_pola_swin_t_50e',
    'semantic_fpn_pola_pvt_t_40k',
    'upernet_pola_swin_t_160k',
    'segformer_polaformer_pp_b1_160k',
    'ham_polaformer_pp_b1_160k',
)
"""One config of every kind of detector and segmenter."""

STEPS_IN_FLOAT64 = (
    'retinanet_pola_pvt_t_1x',
    'semantic_fpn_pola_pvt_t_40k',
    'upernet_pola_swin_t_160k',
    'segformer_polaformer_pp_b1_160k',
    'ham_polaformer_pp_b1_160k',
)
"""Those that mmdet, mmseg and the compiled operators can run in float64.

In float32 the instructions that a processor has can move the norm of the gradients by 0.1 %.
"""

CLASSES = 6
SIZE = 96  # pixels


def boxes_and_scores():
    """Return 60 overlapping boxes [60, 4], their scores and classes, all scores different."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.rand(60, 2, generator=generator) * 60
    sizes = torch.rand(60, 2, generator=generator) * 40 + 2
    boxes = torch.cat((centres - sizes / 2, centres + sizes / 2), dim=1)
    scores = torch.randperm(60, generator=generator) / 60 + 0.005
    classes = torch.arange(60) % 3
    return boxes, scores, classes


def maps_and_regions():
    """Return maps [2, 3, 20, 24] of stride 4, and regions of every kind: inside, outside, empty."""
    generator = torch.Generator().manual_seed(4)
    maps = torch.randn(2, 3, 20, 24, generator=generator)
    starts = torch.rand(8, 2, generator=generator) * 60
    sizes = torch.rand(8, 2, generator=generator) * 40
    sizes[6] = 0
    starts[7] = 200
    images = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1]).float()
    return maps, torch.cat((images[:, None], starts, starts + sizes), dim=1)


def nms_cases():
    """Return name -> results of suppression: boxes with scores, indices."""
    boxes, scores, classes = boxes_and_scores()
    results = {}
    for offset in (0, 1):
        for threshold in (0.3, 0.6):
            results[f'nms {offset} {threshold}'] = ops.nms(boxes, scores, threshold, offset)
    results['nms score'] = ops.nms(boxes, scores, 0.5, score_threshold=0.4, max_num=7)
    for agnostic in (False, True):
        results[f'batched {agnostic}'] = ops.batched_nms(
            boxes, scores, classes, {'type': 'nms', 'iou_threshold': 0.4}, agnostic
        )
    for method in ('naive', 'linear', 'gaussian'):
        for offset in (0, 1):
            results[f'soft {method} {offset}'] = ops.soft_nms(
                boxes, scores, 0.3, 0.5, 0.05, method, offset
            )
    return results


def with_gradients(function, *inputs):
    """Return the output of a function and the gradients of its inputs for a fixed direction."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*inputs)
    direction = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output.dtype)
    return output.detach(), *torch.autograd.grad(output, inputs, direction)


def roi_cases():
    """Return name -> output and gradient of RoIAlign."""
    maps, regions = maps_and_regions()
    results = {}
    for aligned in (True, False):
        for sampling in (0, 2):
            results[f'roi_align {aligned} {sampling}'] = with_gradients(
                lambda x, a=aligned, s=sampling: ops.roi_align(
                    x, regions, (5, 7), 0.25, s, 'avg', a
                ),
                maps,
            )
    return results


def deformable_cases():
    """Return name -> output and gradients of deformable convolutions, away from whole pixels."""
    generator = torch.Generator().manual_seed(5)
    results = {}
    for groups, deform_groups, stride, dilation in ((1, 1, 1, 1), (2, 2, 2, 1), (1, 2, 1, 2)):
        maps = torch.randn(2, 4, 9, 10, generator=generator)
        weight = torch.randn(6, 4 // groups, 3, 3, generator=generator)
        bias = torch.randn(6, generator=generator)
        height = (9 + 2 - 2 * dilation - 1) // stride + 1
        width = (10 + 2 - 2 * dilation - 1) // stride + 1
        taps = 9 * deform_groups
        offset = torch.randn(2, 2 * taps, height, width, generator=generator)
        mask = torch.rand(2, taps, height, width, generator=generator)
        settings = (stride, 1, dilation, groups, deform_groups)
        name = f'{groups} {deform_groups} {stride} {dilation}'
        results[f'dcn {name}'] = with_gradients(
            lambda x, o, w, s=settings: ops.deform_conv2d(x, o, w, *s), maps, offset, weight
        )
        results[f'dcn v2 {name}'] = with_gradients(
            lambda x, o, m, w, b, s=settings: ops.modulated_deform_conv2d(x, o, m, w, b, *s),
            maps,
            offset,
            mask,
            weight,
            bias,
        )

    # Offset and mask of a finer level, as DyHead passes them; the output is 5 x 5.
    finer = torch.randn(2, 27, 9, 10, generator=generator)
    results['dcn v2 finer'] = with_gradients(
        lambda x, o, m, w, b: ops.modulated_deform_conv2d(x, o, m, w, b, 2, 1),
        maps,
        finer[:, :18],
        finer[:, 18:].sigmoid(),
        torch.randn(6, 4, 3, 3, generator=generator),
        bias,
    )
    return results


def small_model(name):
    """Build a small configs/`name`.py with seeded weights, without dropout and drop path.

    The masks of dropout differ between versions of torch.
    """
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    shrink_model(cfg.model)
    shrink_detector(cfg.model)
    cfg.model.backbone.drop_path_rate = 0.0
    if cfg.default_scope == 'mmdet':
        _set_classes(cfg.model)
    for head in ('decode_head', 'auxiliary_head'):
        if head in cfg.model:
            cfg.model[head].dropout_ratio = 0.0
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return cfg.default_scope, model.train()


def _set_classes(node):
    """Let every head of a detector predict `CLASSES` classes."""
    if isinstance(node, dict):
        if 'num_classes' in node:
            node['num_classes'] = CLASSES
        for child in node.values():
            _set_classes(child)
    elif isinstance(node, (list, tuple)):
        for child in node:
            _set_classes(child)


def batch(scope, model, with_mask):
    """Return two random images, after the preprocessor, with boxes and masks or with label maps."""
    if scope == 'mmdet':
        data = demo_mm_inputs(
            2,
            [[3, SIZE, SIZE], [3, SIZE, SIZE]],
            num_items=[3, 5],
            num_classes=CLASSES,
            with_mask=with_mask,
            with_semantic=False,
        )
    else:
        generator = torch.Generator().manual_seed(6)
        images = torch.randint(256, (2, 3, SIZE, SIZE), generator=generator).to(torch.uint8)
        samples = []
        for _ in range(2):
            labels = torch.randint(150, (1, SIZE, SIZE), generator=generator)
            sample = SegDataSample(metainfo={'img_shape': (SIZE, SIZE)})
            sample.gt_sem_seg = PixelData(data=labels)
            samples.append(sample)
        data = {'inputs': list(images), 'data_samples': samples}
        model.data_preprocessor.size = (SIZE, SIZE)
    return model.data_preprocessor(data, training=True)


def step(name):
    """Return the losses of one seeded step, and the norm of all gradients."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if name in STEPS_IN_FLOAT64 else torch.float32)
    try:
        scope, model = small_model(name)
        data = batch(scope, model, with_mask='mask' in name)
        torch.manual_seed(1)
        loss, losses = model.parse_losses(model(**data, mode='loss'))
    finally:
        torch.set_default_dtype(default)
    loss.backward()
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    results = {key: value.detach() for key, value in losses.items()}
    results['gradient norm'] = torch.stack(squares).sum().sqrt()
    return results


def operators():
    """Return name -> tuple of tensors, of every operator that mmcv has compiled for a CPU."""
    return {**nms_cases(), **roi_cases(), **deformable_cases()}


def main():
    extension = sys.modules['mmcv._ext'].__file__
    assert extension.endswith('.so'), f'expected a compiled mmcv, got {extension}'
    steps = {name: step(name) for name in STEPS}
    torch.save({'operators': operators(), 'steps': steps}, RECORD)


if __name__ == '__main__':
    main()
