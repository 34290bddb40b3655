"""What ImageNet configs have in common, and their transforms; test_recipes.py has their values."""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from PIL import Image
from timm import create_model
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    create_transform,
    resolve_model_data_config,
)
from torchvision.transforms import (
    CenterCrop,
    Compose,
    InterpolationMode,
    Normalize,
    Resize,
    ToTensor,
)

import mmpola.timm  # noqa: F401  registers the models
from mmpola.pretraining.class_folders import ClassFolders

SAME_BUT_BACKBONE = {
    'imagenet_pola_deit_t_no_gate': ('imagenet_pola_deit_t', {'gate': False}),
    'imagenet_pola_deit_t_no_gate_no_mixing': (
        'imagenet_pola_deit_t',
        {'gate': False, 'mixing': None},
    ),
    'imagenet_pola_deit_t_no_mixing': ('imagenet_pola_deit_t', {'mixing': None}),
    'imagenet_pola_deit_t_dcn': ('imagenet_pola_deit_t', {'mixing': 'dcn'}),
    'imagenet_pola_deit_t_no_polarity': ('imagenet_pola_deit_t', {'polarity': False}),
    'imagenet_deit_t': ('imagenet_pola_deit_t', {'attn_types': 'S'}),
    'imagenet_swin_t': ('imagenet_pola_swin_t', {'attn_types': 'SSSS'}),
}
"""Config -> another one, and what it changes in its backbone."""


@pytest.mark.parametrize(('letter', 'arch'), [('s', 'small'), ('b', 'base')])
def test_fine_tuning_at_384_starts_from_224(letter, arch, root):
    cfg = read(root, f'imagenet_pola_swin_{letter}_384')
    assert cfg.model.init_cfg == {'type': 'Pretrained', 'checkpoint': f'mmpola://pola_swin_{arch}'}
    assert (cfg.model.backbone.window_size, cfg.model.backbone.pretrain_img_size) == (12, 384)


@pytest.mark.parametrize('name', SAME_BUT_BACKBONE)
def test_ablations_and_baselines_differ_in_their_backbone_only(name, root):
    other, changes = SAME_BUT_BACKBONE[name]
    expected = read(root, other).to_dict()
    expected['model']['backbone'].update(changes)
    assert read(root, name).to_dict() == expected


@pytest.mark.parametrize('family', ['swin', 'pvt'])
def test_the_fine_tuning_recipe(family, root):
    """Pretrained backbone, layer decay with the full rate for the head, an epoch of warm-up, no
    mixing.
    """
    cfg = read(root, f'finetune_pola_{family}_t')
    assert cfg.model.backbone.init_cfg.checkpoint == f'mmpola://pola_{family}_tiny'
    assert (
        'mixup' not in cfg.model.data_preprocessor
        and 'auto_augment' not in cfg.train_dataloader.dataset.transform
    )
    warmup, cosine = cfg.param_scheduler
    assert (warmup.end, cosine.begin, cosine.end, cosine.T_max) == (1, 1, 20, 19)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    rates = {id(p): group['lr'] for group in groups for p in group['params']}
    blocks = {'swin': 12, 'pvt': 8}[family]
    assert rates[id(model.head.weight)] == 5e-4
    assert min(rates.values()) == pytest.approx(5e-4 * 0.8 ** (blocks + 1))


def read(root, name):
    return Config.fromfile(root / 'configs' / f'{name}.py')


AUTHORS_RESIZING = {
    # PolaFormer, data/build.py:110-121
    'imagenet_pola_swin_b': [Resize((256, 256), InterpolationMode.BICUBIC), CenterCrop(224)],
    'imagenet_pola_swin_b_384': [Resize((384, 384), InterpolationMode.BICUBIC)],
}


@pytest.mark.parametrize('name', AUTHORS_RESIZING)
def test_evaluated_photos_are_the_authors_inputs(name, root, real_data):
    normalize = Normalize(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    theirs = Compose([*AUTHORS_RESIZING[name], ToTensor(), normalize])
    cfg = read(root, name)
    folder = f'{real_data}/imagenet_mini/val'
    data = ClassFolders(folder, training=False, transform=cfg.test_dataloader.dataset.transform)
    in_timm = create_model(f'pola_swin_base{"_384" if name.endswith("384") else ""}', num_classes=0)
    of_timm = create_transform(**resolve_model_data_config(in_timm))
    ratios = set()
    for number in range(0, len(data), 5):
        photo = Image.open(data.get_data_info(number)['img_path']).convert('RGB')
        ratios.add(photo.width / photo.height)
        expected = theirs(photo)
        assert torch.equal(data[number]['inputs'], expected)
        assert torch.equal(of_timm(photo), expected)
    assert len(ratios) > 1
