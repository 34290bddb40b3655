"""Small configs for generated data, the configs of the docs, and what lets MMEngine read faster."""

import re
from functools import cache

from mmengine.config import config as reading
from mmengine.config import utils as metafiles

from mmpola.openmmlab.config.contents import nodes
from tools.dev.config_rows import read_models

WIDTHS = {
    'embed_dims': (8, 16, 24, 32),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 2, 3, 4),
    'mlp_ratios': (2, 2, 2, 2),
}
SMALL_ARCHS = {
    'mmpola.PolaSwin': {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)},
    'mmpola.PolaPVT': WIDTHS,
    'mmpola.PolaFormerPP': {**WIDTHS, 'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4},
}

ONE_CHANNEL = """
loss = dict(type='CrossEntropyLoss', use_sigmoid=True)
model['decode_head'].update(num_classes=2, out_channels=1, threshold=0.5, loss_decode=loss)
"""
"""Further lines of a segmenter's config: the binary head that mmseg recommends."""

DENSE = [model for model in read_models() if model.data in ('COCO', 'ADE20K')]
"""Detectors and segmenters of configs/published.csv."""

OTHER_HEADS = [model.config for model in DENSE if model.paper == 'not in the paper']
"""Configs of detectors and segmenters outside the papers."""

SMALL_IMAGES = {
    'Resize': {'scale': (96, 80)},
    'RandomResize': {'scale': (96, 80)},
    'RandomChoiceResize': {'scales': [(96, 80)]},
    'RandomCrop': {'crop_size': (64, 64)},
    'CachedMosaic': {'img_scale': (64, 64)},
    'CachedMixUp': {'img_scale': (64, 64)},
    'Pad': {'size': (96, 96)},
}
"""Settings of transforms, by type, for images of about 96 x 80 pixels."""

FEW_BOXES = {'nms_pre': 100, 'max_per_img': 20, 'num': 32}
"""Largest numbers of boxes before and after suppression, and in a sample."""

TINY = """
_base_ = {base!r}

read = dict(out_channels=16)
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 4)),
        drop_path_rate=0.0,
        init_cfg=None,
    ),
    neck=dict(in_channels=[8, 16, 32, 64], out_channels=16),
    rpn_head=dict(in_channels=16, feat_channels=16),
    roi_head=dict(
        bbox_roi_extractor=read,
        bbox_head=dict(in_channels=16, conv_out_channels=16, fc_out_channels=32),
        mask_roi_extractor=read,
        mask_head=dict(in_channels=16, conv_out_channels=16),
    ),
)
train_dataloader = dict(
    batch_size=2, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r})
)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file={data!r} + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=3, val_interval=3)
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
"""
"""Text of a config: {base} is mask_rcnn_pola_swin_shapes.py, {data} a COCO folder with a slash."""

OTHERS = {
    'Swin': dict(
        type='mmdet.SwinTransformer', embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 4)
    ),
    'PVT': dict(
        type='mmdet.PyramidVisionTransformer',
        embed_dims=8,
        num_layers=(1, 1, 1, 1),
        num_heads=(1, 2, 4, 8),
    ),
    'ResNet': dict(type='mmdet.ResNet', depth=18, base_channels=8),
}
"""Backbones of mmdet with the widths of the one in `TINY`."""

STATE = {
    'message_hub': {'log_scalars': {}, 'runtime_info': {}, 'resumed_keys': {}},
    'optimizer': {'state': {}, 'param_groups': []},
    'meta': {'epoch': 2, 'iter': 12, 'experiment_name': 'tiny_20250131_235959'},
}
"""Entries of a checkpoint of tiny.py after two epochs of six steps, next to its weights."""

TINY_SEGMENTATION = """
_base_ = {base!r}

crop = (64, 64)
train_pipeline, test_pipeline = _base_.train_pipeline, _base_.test_pipeline
for transform in train_pipeline + test_pipeline:
    if 'scale' in transform:
        transform.scale = (96, 80)
    if 'crop_size' in transform:
        transform.crop_size = crop

model = dict(
    data_preprocessor=dict(size=crop),
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=(8, 16, 24, 32),
            depths=(1,) * 4,
            num_heads=(1, 2, 3, 4),
            mlp_ratios=(2,) * 4,
        ),
        init_cfg=None,
    ),
    neck=dict(in_channels=[8, 16, 24, 32], out_channels=16),
    decode_head=dict(in_channels=[16] * 4, channels=16, num_classes=6),
)
shapes = dict(
    type='BaseSegDataset',
    reduce_zero_label=True,
    data_root={data!r},
    metainfo=dict(classes=('circle', 'square', 'triangle', 'star', 'ring', 'cross')),
)
workers = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **shapes), **workers)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline, **shapes), **workers)
test_dataloader = val_dataloader
default_hooks = dict(logger=dict(interval=1))
"""
"""Text of a config: {base} is semantic_fpn_pola_pvt_t_40k.py, {data} an ADE20K folder."""


def shrink_heads(model):
    """Narrow every layer behind the backbone to 32 channels; let detectors return few boxes."""
    for _, node in nodes(model, 'model'):
        for key, value in node.items():
            if key.endswith('channels'):
                if isinstance(value, (list, tuple)):
                    node[key] = [32] * len(value)
                else:
                    node[key] = 32
            elif key in FEW_BOXES:
                node[key] = min(value, FEW_BOXES[key])


def shrink_model(model):
    """Give a model's config a tiny backbone with random weights; narrow the papers' heads."""
    if model.type not in ('DINO', 'RTMDet', 'Mask2Former'):
        shrink_heads(model)
    backbone = model.backbone
    backbone['arch'] = SMALL_ARCHS[backbone.type]
    backbone['init_cfg'] = None
    dims = backbone.arch['embed_dims']
    if isinstance(dims, int):
        channels = [dims, 2 * dims, 4 * dims, 8 * dims]
    else:
        channels = list(dims)
    channels = [channels[i] for i in backbone.get('out_indices', range(4))]
    reader = next(model[name] for name in ('neck', 'decode_head', 'panoptic_head') if name in model)
    reader['in_channels'] = channels
    if 'auxiliary_head' in model:
        model.auxiliary_head['in_channels'] = channels[2]


def shrink_detector(model):
    """Shrink the parts of a DINO, RTMDet or Mask2Former for a tiny backbone and image."""
    if model.type == 'RTMDet':
        model.neck.norm_cfg.num_groups = 4
    if model.type == 'DINO':
        model.encoder.num_layers = model.decoder.num_layers = 1
        model.num_queries = model.test_cfg.max_per_img = 20
    if model.type == 'Mask2Former':
        head = model.panoptic_head
        things = 6
        head.pixel_decoder.encoder.num_layers = 1
        head.transformer_decoder.num_layers = 3  # one per scale
        head.num_things_classes = model.panoptic_fusion_head.num_things_classes = things
        head.loss_cls.class_weight = [1.0] * things + [0.1]
        model.train_cfg.num_points = 100
        model.data_preprocessor.batch_augments[0].size = (96, 96)


def shrink_input(cfg):
    """Load small images, without workers."""
    preprocessor = cfg.model.get('module', cfg.model).data_preprocessor
    if 'size' in preprocessor:
        preprocessor.size = (64, 64)
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        shrink_images(loader.dataset.pipeline)


def shrink_images(pipeline):
    for transform in pipeline:
        for key, small in SMALL_IMAGES.get(transform.type, {}).items():
            if key in transform:
                transform[key] = small
        # The variants of test-time augmentation, or of a random choice.
        for variants in transform.get('transforms', ()):
            shrink_images(variants)


def shrink(cfg, shapes, tmp_path):
    """Give a config a tiny backbone, small images, one step and generated data."""
    shrink_model(cfg.model)
    shrink_detector(cfg.model)
    shrink_input(cfg)
    detection = cfg.default_scope == 'mmdet'
    data_root = f'{shapes}/ade'
    if detection:
        data_root = f'{shapes}/coco/'
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset['data_root'] = data_root
    if detection:
        for _, node in nodes(cfg.model, 'model'):
            if 'num_classes' in node:
                node['num_classes'] = 6
        metainfo = {'classes': ('circle', 'square', 'triangle', 'star', 'ring', 'cross')}
        for split in ('train', 'val', 'test'):
            cfg[f'{split}_dataloader'].dataset['metainfo'] = metainfo
        for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
            evaluator['ann_file'] = f'{shapes}/coco/annotations/instances_val2017.json'
        cfg.train_dataloader.dataset['indices'] = 2  # an epoch of one step
        test_cfg = cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg)
        test_cfg['score_thr'] = 0.0  # untrained scores count too
    cfg.train_cfg.pop('dynamic_intervals', None)
    if 'max_epochs' in cfg.train_cfg:
        cfg.train_cfg.max_epochs = 1
    else:
        cfg.train_cfg.max_iters = 1
    cfg.train_cfg.val_interval = 1
    cfg.work_dir = str(tmp_path / 'work')
    cfg.log_level = 'ERROR'
    return cfg


INSTALLED = "__import__('mmpola').__path__[0] + '/.mim/"
"""How the configs of pages find the installed configs, which work in any folder."""

BLOCK = re.compile(r'^```python\n# (?P<name>\w+\.py)\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def config_files(root):
    """Return the text of each file by name, in the order of the page."""
    page = (root / 'docs' / 'in_your_own_project.md').read_text()
    return {match['name']: match['text'] for match in BLOCK.finditer(page)}


def remember_packages(patch):
    """Let MMEngine look up each package, and read its metafiles, once instead of every time.

    It does both for every base config that is taken from a package, which takes most of the time in
    which a config is read. No value of a config changes.

    Args:
        patch: pytest's MonkeyPatch.
    """
    patch.setattr(reading, 'is_installed', cache(reading.is_installed))
    patch.setattr(metafiles, 'load', cache(metafiles.load))


def leave_configs_unformatted(patch):
    """Let MMEngine write configs as they are, without formatting the Python code.

    A training run writes its config to about ten places, and formatting takes 0.4 seconds each.

    Args:
        patch: pytest's MonkeyPatch.
    """
    # The fork has no FormatCode.
    patch.setattr(reading, 'FormatCode', lambda text, **_: (text, True), raising=False)
