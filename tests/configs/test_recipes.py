"""Configs equal the recipes that they name: a row per file of a source, compared with the config
that MMEngine reads.

Sources, by the names in the tables: PolaFormer and PolaFormerPP (the authors' repositories),
FLatten (FLatten-Transformer), Swin-D and Swin-S (Swin-Transformer-Object-Detection and
-Semantic-Segmentation), PVT. The numbers behind a file's name are its lines.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, build_scheduler_from_cfg, init_default_scope

from tests.configs.test_imagenet_configs import SAME_BUT_BACKBONE
from tools.dev.config_rows import read_models

pytestmark = pytest.mark.usefixtures('unformatted_configs')

GPUS = 8
RECORDED = json.loads(
    (Path(__file__).parents[1] / 'golden' / 'training' / 'recipes.json').read_text()
)
"""What the authors' schedulers and optimizers computed, by config. That of b5 is their file for
fine-tuning.
"""


class Pretraining(NamedTuple):
    """A recipe on ImageNet; learning rates are per 512 images."""

    warmup: int  # epochs
    cooldown: int  # epochs
    warmup_lr: float
    base_lr: float
    min_lr: float
    clip: float | None
    images: int  # per GPU
    drop_path: float
    epochs: int = 300  # without the cool-down
    weight_decay: float = 0.05
    size: int = 224


PVT = (5, 10, 1e-6, 5e-4, 1e-5)
SWIN = (20, 0, 5e-7, 5e-4, 5e-6)
PLUS = (20, 0, 5e-7, 5e-4, 1e-7)
PLUS_B4 = (5, 10, 1e-7, 5e-4, 1e-5)
LARGER = (5, 0, 2e-8, 2e-5, 2e-7)
FINE_TUNING = {'clip': 5.0, 'images': 32, 'epochs': 30, 'weight_decay': 1e-8, 'size': 384}

IMAGENET = {
    # PolaFormer, cfgs/pola_pvt_t.yaml:3-18, and so on; the large model is in pola_pvt_b.yaml
    'imagenet_pola_pvt_t': Pretraining(*PVT, clip=None, images=128, drop_path=0.1),
    'imagenet_pola_pvt_s': Pretraining(*PVT, clip=None, images=64, drop_path=0.1),
    'imagenet_pola_pvt_m': Pretraining(*PVT, clip=1.0, images=64, drop_path=0.3),
    'imagenet_pola_pvt_l': Pretraining(*PVT, clip=1.0, images=32, drop_path=0.3),
    # FLatten, cfgs/flatten_pvt_v2_b0.yaml:3-18 and flatten_pvt_v2_b1.yaml:3-18
    'imagenet_pola_pvt_v2_b0': Pretraining(*PVT, clip=None, images=128, drop_path=0.1),
    'imagenet_pola_pvt_v2_b1': Pretraining(*PVT, clip=None, images=128, drop_path=0.1),
    # PolaFormer, cfgs/pola_swin_t.yaml:4, pola_swin_s.yaml:4, pola_swin_b.yaml:4-13; the rest is
    # config.py:22-135
    'imagenet_pola_swin_t': Pretraining(*SWIN, clip=5.0, images=128, drop_path=0.2),
    'imagenet_pola_swin_s': Pretraining(*SWIN, clip=5.0, images=128, drop_path=0.3),
    'imagenet_pola_swin_b': Pretraining(*SWIN, clip=5.0, images=64, drop_path=0.5),
    # PolaFormer, cfgs/pola_swin_b_384.yaml:3-23; the small model has the drop path rate of
    # pola_swin_s.yaml:4
    'imagenet_pola_swin_b_384': Pretraining(*LARGER, drop_path=0.5, **FINE_TUNING),
    'imagenet_pola_swin_s_384': Pretraining(*LARGER, drop_path=0.3, **FINE_TUNING),
    # PolaFormer, config.py:22-135; no file for this model
    'imagenet_pola_deit_t': Pretraining(*SWIN, clip=5.0, images=128, drop_path=0.1),
    # PolaFormerPP, polaformer++/cfgs/pola_b0.yaml:6-9 ... pola_b3.yaml:6-9, models/pola.py:496-560;
    # config.py as above
    'imagenet_polaformer_pp_b0': Pretraining(*PLUS, clip=5.0, images=256, drop_path=0.1),
    'imagenet_polaformer_pp_b1': Pretraining(*PLUS, clip=5.0, images=256, drop_path=0.1),
    'imagenet_polaformer_pp_b2': Pretraining(*PLUS, clip=5.0, images=256, drop_path=0.1),
    'imagenet_polaformer_pp_b3': Pretraining(*PLUS, clip=5.0, images=128, drop_path=0.15),
    # PolaFormerPP, polaformer++/cfgs/pola_b4.yaml:5-13; b5 has no recipe from random weights and
    # takes b4's
    'imagenet_polaformer_pp_b4': Pretraining(*PLUS_B4, clip=1.0, images=128, drop_path=0.4),
    'imagenet_polaformer_pp_b5': Pretraining(*PLUS_B4, clip=1.0, images=128, drop_path=0.55),
}


class Detection(NamedTuple):
    """A recipe on COCO: 8 GPUs x 2 images, 500 steps of warm-up from 1e-3 of the rate."""

    drop_path: float
    epochs: int
    multiscale: bool
    weight_decay: float = 1e-4


STEPS = {12: [8, 11], 36: [27, 33]}
"""Epochs -> epochs after which the learning rate falls (mmdet, Swin-D, PolaFormerPP)."""

COCO = {
    # PVT, detection/configs/{retinanet,mask_rcnn}_pvt_{t,s}_fpn_1x_coco.py
    'retinanet_pola_pvt_t_1x': Detection(0.1, 12, multiscale=False),
    'retinanet_pola_pvt_s_1x': Detection(0.1, 12, multiscale=False),
    'mask_rcnn_pola_pvt_t_1x': Detection(0.1, 12, multiscale=False),
    'mask_rcnn_pola_pvt_s_1x': Detection(0.1, 12, multiscale=False),
    # Swin-D, configs/swin/mask_rcnn_swin_tiny_*_1x_coco.py:14, *_3x_coco.py:14,
    # mask_rcnn_swin_small_*_3x_coco.py:14
    'mask_rcnn_pola_swin_t_1x': Detection(0.1, 12, multiscale=True),
    'mask_rcnn_pola_swin_t_3x': Detection(0.2, 36, multiscale=True),
    'mask_rcnn_pola_swin_s_1x': Detection(0.2, 12, multiscale=True),
    'mask_rcnn_pola_swin_s_3x': Detection(0.2, 36, multiscale=True),
    'mask_rcnn_pola_swin_b_1x': Detection(0.3, 12, multiscale=True),
    'mask_rcnn_pola_swin_b_3x': Detection(0.3, 36, multiscale=True),
    # Swin-D,
    # configs/swin/cascade_mask_rcnn_swin_{tiny_*_1x,tiny_*_3x,small_*_3x,base_*_3x}_coco.py:14
    'cascade_mask_rcnn_pola_swin_t_1x': Detection(0.0, 12, multiscale=True),
    'cascade_mask_rcnn_pola_swin_t_3x': Detection(0.2, 36, multiscale=True),
    'cascade_mask_rcnn_pola_swin_s_1x': Detection(0.2, 12, multiscale=True),
    'cascade_mask_rcnn_pola_swin_s_3x': Detection(0.2, 36, multiscale=True),
    'cascade_mask_rcnn_pola_swin_b_1x': Detection(0.3, 12, multiscale=True),
    'cascade_mask_rcnn_pola_swin_b_3x': Detection(0.3, 36, multiscale=True),
    # PolaFormerPP, downstream/detection/configs/PolaPP/maskrcnn_b2_1x.py:15-27,
    # maskrcnn_b2_3x.py:15-80, and so on
    'mask_rcnn_polaformer_pp_b2_1x': Detection(0.1, 12, multiscale=False, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b2_3x': Detection(0.1, 36, multiscale=True, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b3_1x': Detection(0.15, 12, multiscale=False, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b3_3x': Detection(0.15, 36, multiscale=True, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b4_1x': Detection(0.4, 12, multiscale=False, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b4_3x': Detection(0.4, 36, multiscale=True, weight_decay=0.05),
    'mask_rcnn_polaformer_pp_b5_1x': Detection(0.55, 12, multiscale=False, weight_decay=0.05),
    # PolaFormerPP, downstream/detection/configs/_base_/models/PolaPP_cas_rcnn.py:10, schedule of
    # maskrcnn_b3_3x.py
    'cascade_mask_rcnn_polaformer_pp_b3_3x': Detection(
        0.15, 36, multiscale=True, weight_decay=0.05
    ),
    # PolaFormerPP, downstream/detection/configs/PolaPP/retinanet_b2_1x.py:15-29,
    # retinanet_b3_1x.py:15-29
    'retinanet_polaformer_pp_b2_1x': Detection(0.1, 12, multiscale=False),
    'retinanet_polaformer_pp_b3_1x': Detection(0.15, 12, multiscale=False),
}


class Segmentation(NamedTuple):
    """A recipe on ADE20K."""

    lr: float
    weight_decay: float
    steps: int
    images: int  # per GPU
    warmup: int  # steps, from 1e-6 of the rate; 0 for none
    power: float  # of the polynomial
    drop_path: float
    multiples: bool  # whether test images are resized to multiples of 32
    evaluations: int = 10  # in the whole run, each with a checkpoint


UPERNET = Segmentation(2e-4, 1e-3, 160_000, 2, 1500, 1.0, 0.3, multiples=False)
HAM = {'multiples': True, 'evaluations': 20}

ADE20K = {
    # Rates and steps: PolaFormer, appendix A.2. PVT,
    # segmentation/configs/sem_fpn/PVT/fpn_pvt_{t,s}_ade20k_40k.py:18-27
    'semantic_fpn_pola_pvt_t_40k': Segmentation(2e-4, 1e-3, 40_000, 4, 0, 0.9, 0.1, multiples=True),
    'semantic_fpn_pola_pvt_s_40k': Segmentation(2e-4, 1e-3, 40_000, 4, 0, 0.9, 0.1, multiples=True),
    # Swin-S,
    # configs/swin/upernet_swin_{tiny,small,base}_patch4_window7_512x512_160k_ade20k.py:12-39
    'upernet_pola_swin_t_160k': UPERNET,
    'upernet_pola_swin_s_160k': UPERNET,
    'upernet_pola_swin_b_160k': UPERNET,
    # PolaFormerPP, downstream/segmentation/configs/PolaPP/polapp_b1.py:21-64, polapp_b2.py,
    # polapp_b3.py
    'ham_polaformer_pp_b1_160k': Segmentation(6e-5, 0.01, 160_000, 8, 1500, 1.0, 0.1, **HAM),
    'ham_polaformer_pp_b2_160k': Segmentation(6e-5, 0.01, 160_000, 8, 1500, 1.0, 0.1, **HAM),
    'ham_polaformer_pp_b3_160k': Segmentation(6e-5, 0.01, 160_000, 8, 1500, 1.0, 0.15, **HAM),
}


@cache
def read(root, name):
    return Config.fromfile(root / 'configs' / f'{name}.py')


@cache
def build(root, name):
    cfg = read(root, name)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return MODELS.build(cfg.model)


def last_drop_path(model):
    """Return the stochastic depth rate of a backbone's last block, after the linear rise."""
    path: Any = model.backbone.stages[-1].blocks[-1].drop_path
    return path.drop_prob or 0.0


def learning_rates(cfg, base_lr, epoch_length, steps):
    """Return the learning rate that the config's schedule sets at each of the first `steps`
    steps.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base_lr)
    parts = []
    for part in cfg.param_scheduler:
        defaults = {'optimizer': optimizer, 'epoch_length': epoch_length}
        parts.append((part, build_scheduler_from_cfg(part, PARAM_SCHEDULERS, defaults)))
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for part, scheduler in parts:
            by_epoch = part.get('by_epoch', True) and not part.get('convert_to_iter_based')
            if not by_epoch or (step + 1) % epoch_length == 0:
                scheduler.step()
    return rates


def optimised(model, cfg, setting):
    """Return 'lr' or 'weight_decay' of every parameter by name."""
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    by_parameter = {id(p): group[setting] for group in groups for p in group['params']}
    return {name: by_parameter[id(p)] for name, p in model.named_parameters()}


def test_every_published_recipe_is_compared():
    """Those of the Long Range Arena are in test_lra_configs.py."""
    compared = {*IMAGENET, *COCO, *ADE20K, *SAME_BUT_BACKBONE}
    for row in read_models():
        is_own = row.paper == 'not in the paper' or row.config.startswith('lra_')
        assert is_own or row.config in compared, row.config


@pytest.mark.parametrize('name', IMAGENET)
def test_imagenet(name, root):
    cfg = read(root, name)
    recipe = IMAGENET[name]
    assert cfg.optim_wrapper.optimizer.to_dict() == {
        'type': 'AdamW',
        'lr': recipe.base_lr,
        'betas': (0.9, 0.999),
        'eps': 1e-8,
        'weight_decay': recipe.weight_decay,
    }
    assert cfg.auto_scale_lr == {'enable': True, 'base_batch_size': 512}
    assert (cfg.optim_wrapper.clip_grad or {}).get('max_norm') == recipe.clip
    (schedule,) = cfg.param_scheduler
    end = recipe.epochs + recipe.cooldown
    assert schedule.type == 'mmpola.WarmupCosineLR'
    assert schedule.by_epoch and schedule.convert_to_iter_based
    assert (schedule.warmup, schedule.T_max, schedule.end) == (recipe.warmup, recipe.epochs, end)
    assert cfg.train_cfg.max_epochs == end
    assert schedule.start_factor * recipe.base_lr == pytest.approx(recipe.warmup_lr)
    assert schedule.eta_min_ratio * recipe.base_lr == pytest.approx(recipe.min_lr)
    assert cfg.train_dataloader.batch_size == recipe.images
    assert last_drop_path(build(root, name)) == pytest.approx(recipe.drop_path, rel=1e-6)
    average = cfg.default_hooks.get('average')
    assert (average is not None) == ('polaformer_pp' in name)
    if average:  # PolaFormerPP, polaformer++/pretrain.sh:8: of every step, whatever the batch
        assert 1 - average.momentum == pytest.approx(0.99982)
        assert average.update_buffers

    preprocessor = cfg.model.data_preprocessor
    assert preprocessor.label_smoothing == 0.1
    assert preprocessor.mixup == {
        'mixup_alpha': 0.8,
        'cutmix_alpha': 1.0,
        'prob': 1.0,
        'switch_prob': 0.5,
    }
    assert cfg.train_dataloader.dataset.transform == {
        'input_size': recipe.size,
        'interpolation': 'bicubic',
        'auto_augment': 'rand-m9-mstd0.5-inc1',
        'color_jitter': 0.4,
        're_prob': 0.25,
        're_mode': 'pixel',
    }
    for split in ('val', 'test'):
        assert cfg[f'{split}_dataloader'].dataset.transform == {
            'input_size': recipe.size,
            'interpolation': 'bicubic',
            'crop_pct': 0.875 if recipe.size == 224 else 1.0,
            'crop_mode': 'squash',
        }


@pytest.mark.parametrize('name', sorted(RECORDED.keys() - {'imagenet_polaformer_pp_b5'}))
def test_learning_rates_of_every_half_epoch(name, root):
    """The authors set a rate after the step, so theirs follow ours by one step. Recorded with six
    digits.
    """
    record = RECORDED[name]
    cfg = read(root, name)
    epoch_length = 50
    half = epoch_length // 2
    scale = record['batch_of_8_gpus'] / cfg.auto_scale_lr.base_batch_size
    base_lr = cfg.optim_wrapper.optimizer.lr * scale
    rates = learning_rates(cfg, base_lr, epoch_length, epoch_length * cfg.train_cfg.max_epochs)
    assert len(record['learning_rates']) == 2 * cfg.train_cfg.max_epochs
    for number, expected in enumerate(record['learning_rates']):
        rate = rates[max(number * half - 1, 0)]
        last_digit = 10.0 ** (torch.tensor(expected).log10().floor().item() - 5)
        assert abs(rate - expected) <= 0.5 * last_digit + 1e-6 * expected, (name, number)


@pytest.mark.parametrize('name', IMAGENET)
def test_what_is_decayed_on_imagenet(name, root):
    """PolaFormer, optimizer.py:55 and models/pola_swin.py:677; tables, powers and scales are
    decayed.
    """
    model = build(root, name)
    decay = optimised(model, read(root, name), 'weight_decay')
    free = {key for key, value in decay.items() if value == 0.0}
    vectors = {key for key, p in model.named_parameters() if p.ndim == 1 or key.endswith('.bias')}
    tables = {key for key in decay if 'relative_position_bias_table' in key}
    assert free == vectors | tables
    assert {value for key, value in decay.items() if key not in free} == {
        IMAGENET[name].weight_decay
    }
    if name in RECORDED:
        unused = (
            2 if 'pola_pvt' in name else 0
        )  # weight and bias of a norm that the authors' Pola-PVT never reads
        assert len(free) + unused == RECORDED[name]['no_decay']
        theirs = dict.fromkeys(RECORDED[name]['no_decay_that_are_no_vectors'])
        assert set(model.rename_weights(theirs)) == tables


@pytest.mark.parametrize('name', COCO)
def test_coco(name, root):
    cfg = read(root, name)
    recipe = COCO[name]
    assert cfg.optim_wrapper.optimizer.to_dict() in (
        {'type': 'AdamW', 'lr': 1e-4, 'betas': (0.9, 0.999), 'weight_decay': recipe.weight_decay},
        {
            'type': 'AdamW',
            'lr': 1e-4,
            'weight_decay': recipe.weight_decay,
        },  # PyTorch's betas, which are the same
    )
    assert 'clip_grad' not in cfg.optim_wrapper
    assert cfg.train_cfg.max_epochs == recipe.epochs
    warmup, steps = cfg.param_scheduler
    assert warmup == {
        'type': 'LinearLR',
        'start_factor': 1e-3,
        'by_epoch': False,
        'begin': 0,
        'end': 500,
    }
    assert (steps.type, steps.by_epoch, steps.gamma) == ('MultiStepLR', True, 0.1)
    assert (steps.begin, steps.end, steps.milestones) == (0, recipe.epochs, STEPS[recipe.epochs])
    assert (cfg.train_dataloader.batch_size, cfg.auto_scale_lr.base_batch_size) == (2, 2 * GPUS)
    assert not cfg.auto_scale_lr.enable
    assert cfg.model.backbone.drop_path_rate == recipe.drop_path
    resizing = cfg.train_dataloader.dataset.pipeline[2:4]
    if recipe.multiscale:
        assert resizing == [{'type': 'RandomFlip', 'prob': 0.5}, MULTISCALE]
    else:
        assert resizing == [
            {'type': 'Resize', 'scale': (1333, 800), 'keep_ratio': True},
            {'type': 'RandomFlip', 'prob': 0.5},
        ]
    assert {
        'type': 'Resize',
        'scale': (1333, 800),
        'keep_ratio': True,
    } in cfg.test_dataloader.dataset.pipeline


SHORT_SIDES = [(side, 1333) for side in (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)]
MULTISCALE = {
    # Swin-D, configs/swin/*.py:30-55; PolaFormerPP,
    # downstream/detection/configs/PolaPP/maskrcnn_b2_3x.py:32-58
    'type': 'RandomChoice',
    'transforms': [
        [{'type': 'RandomChoiceResize', 'scales': SHORT_SIDES, 'keep_ratio': True}],
        [
            {
                'type': 'RandomChoiceResize',
                'scales': [(400, 1333), (500, 1333), (600, 1333)],
                'keep_ratio': True,
            },
            {
                'type': 'RandomCrop',
                'crop_type': 'absolute_range',
                'crop_size': (384, 600),
                'allow_negative_crop': True,
            },
            {'type': 'RandomChoiceResize', 'scales': SHORT_SIDES, 'keep_ratio': True},
        ],
    ],
}


@pytest.mark.parametrize('name', [name for name in COCO if name.startswith('cascade')])
def test_box_heads_of_cascade_mask_rcnn(name, root):
    """Swin-D, configs/swin/cascade_*.py:22-81; PolaFormerPP, PolaPP_cas_rcnn.py:46-101."""
    heads = read(root, name).model.roi_head.bbox_head
    deviations = [[0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.033, 0.033, 0.067, 0.067]]
    assert [head.bbox_coder.target_stds for head in heads] == deviations
    for head in heads:
        assert head.type == 'ConvFCBBoxHead'
        assert (head.num_shared_convs, head.num_shared_fcs) == (4, 1)
        assert (head.in_channels, head.conv_out_channels) == (256, 256)
        assert (head.fc_out_channels, head.roi_feat_size) == (1024, 7)
        assert head.norm_cfg == {'type': 'SyncBN', 'requires_grad': True}
        assert head.reg_class_agnostic is False
        assert head.reg_decoded_bbox is True
        assert head.loss_bbox == {'type': 'GIoULoss', 'loss_weight': 10.0}
        assert head.loss_cls == {
            'type': 'CrossEntropyLoss',
            'use_sigmoid': False,
            'loss_weight': 1.0,
        }
        assert head.num_classes == 80


def test_cascade_mask_rcnn_with_swin_t_has_the_papers_size(root):
    model = build(root, 'cascade_mask_rcnn_pola_swin_t_3x')
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 86.6  # printed: 86


@pytest.mark.parametrize('name', [name for name in (*COCO, *ADE20K) if 'polaformer_pp' in name])
def test_what_is_decayed_in_detectors_and_segmenters_of_polaformer_pp(name, root):
    """PolaFormerPP, maskrcnn_b2_1x.py:23-26, retinanet_b2_1x.py:29, polapp_b1.py:50-55."""
    cfg = read(root, name)
    recipe = COCO.get(name) or ADE20K[name]
    for key, decay in optimised(build(root, name), cfg, 'weight_decay').items():
        free = 'norm' in key and not name.startswith('retinanet')
        assert decay == (0.0 if free else recipe.weight_decay), key


@pytest.mark.parametrize('name', ADE20K)
def test_ade20k(name, root):
    cfg = read(root, name)
    recipe = ADE20K[name]
    assert cfg.optim_wrapper.optimizer.to_dict() == {
        'type': 'AdamW',
        'lr': recipe.lr,
        'betas': (0.9, 0.999),
        'weight_decay': recipe.weight_decay,
    }
    *warmup, poly = cfg.param_scheduler
    if recipe.warmup:
        assert warmup == [
            {
                'type': 'LinearLR',
                'start_factor': 1e-6,
                'by_epoch': False,
                'begin': 0,
                'end': recipe.warmup,
            }
        ]
    else:
        assert not warmup
    assert poly == {
        'type': 'PolyLR',
        'power': recipe.power,
        'eta_min': 0.0,
        'by_epoch': False,
        'begin': recipe.warmup,
        'end': recipe.steps,
    }
    assert cfg.train_cfg.max_iters == recipe.steps
    assert cfg.train_cfg.val_interval == recipe.steps // recipe.evaluations
    assert cfg.default_hooks.checkpoint.interval == recipe.steps // recipe.evaluations
    assert cfg.train_dataloader.batch_size == recipe.images
    assert cfg.auto_scale_lr.base_batch_size == recipe.images * GPUS
    assert cfg.model.backbone.drop_path_rate == recipe.drop_path
    for split in ('val', 'test'):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        assert pipeline[1] == {'type': 'Resize', 'scale': (2048, 512), 'keep_ratio': True}
        assert ({'type': 'ResizeToMultiple', 'size_divisor': 32} in pipeline) == recipe.multiples
    crop = next(step for step in cfg.train_dataloader.dataset.pipeline if step.type == 'RandomCrop')
    assert (crop.crop_size, crop.cat_max_ratio) == ((512, 512), 0.75)


@pytest.mark.parametrize('name', [name for name in ADE20K if name.startswith('ham')])
def test_light_ham_trains_its_head_faster_and_keeps_batch_norm_statistics(name, root):
    """PolaFormerPP, polapp_b1.py:50-55, and norm_eval in mmseg/models/backbones/PolaPP.py:431,
    531-539.
    """
    cfg = read(root, name)
    assert cfg.model.backbone.norm_eval is True
    for key, rate in optimised(build(root, name), cfg, 'lr').items():
        assert rate == pytest.approx(6e-4 if 'head' in key else 6e-5), key


def test_dino_trains_its_backbone_at_a_tenth_of_the_rate(root):
    """mmdet, configs/dino/dino-4scale_r50_8xb2-12e_coco.py: lr_mult 0.1 of the backbone."""
    name = 'dino_pola_swin_t_1x'
    rates = optimised(build(root, name), read(root, name), 'lr')
    assert {rate for key, rate in rates.items() if key.startswith('bbox_head.')} == {1e-4}
    of_stages = {
        rate for key, rate in rates.items() if key.startswith(('backbone.stem', 'backbone.stages'))
    }
    assert sorted(of_stages) == pytest.approx([1e-5])
