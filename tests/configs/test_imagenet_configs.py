"""What ImageNet configs have in common, their transforms and that they train; test_recipes.py has
their values.
"""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
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
from mmpola.classification.class_folders import ClassFolders
from tests.helpers.training import run, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')

ABLATIONS = {
    'no_gate': {'gate': False},
    'no_gate_no_mixing': {'gate': False, 'mixing': None},
    'no_mixing': {'mixing': None},
    'dcn': {'mixing': 'dcn'},
    'no_polarity': {'polarity': False},
}
"""End of a config's name -> what it changes in imagenet_pola_deit_t."""


@pytest.mark.parametrize(('letter', 'arch'), [('s', 'small'), ('b', 'base')])
def test_fine_tuning_at_384_starts_from_224(letter, arch, root):
    cfg = read(root, f'imagenet_pola_swin_{letter}_384')
    assert cfg.model.init_cfg == {'type': 'Pretrained', 'checkpoint': f'mmpola://pola_swin_{arch}'}
    assert (cfg.model.backbone.window_size, cfg.model.backbone.pretrain_img_size) == (12, 384)
    sizes = [
        cfg[f'{split}_dataloader'].dataset.transform.input_size
        for split in ('train', 'val', 'test')
    ]
    assert sizes == [384, 384, 384]


def same_but(cfg, other, changes):
    """Whether a config equals another one after `changes` of the backbone."""
    expected = other.to_dict()
    expected['model']['backbone'].update(changes)
    return cfg.to_dict() == expected


@pytest.mark.parametrize('ablation', ABLATIONS)
def test_an_ablation_differs_from_pola_deit_in_its_arguments_only(ablation, root):
    cfg = read(root, f'imagenet_pola_deit_t_{ablation}')
    assert same_but(cfg, read(root, 'imagenet_pola_deit_t'), ABLATIONS[ablation])


@pytest.mark.parametrize(('name', 'attn_types'), [('deit_t', 'S'), ('swin_t', 'SSSS')])
def test_a_baseline_differs_in_its_attention_only(name, attn_types, root):
    cfg = read(root, f'imagenet_{name}')
    assert same_but(cfg, read(root, f'imagenet_pola_{name}'), {'attn_types': attn_types})


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


def test_the_transforms_are_timms(root, colours):
    cfg = read(root, 'imagenet_pola_swin_t')
    train, val = (
        ClassFolders(
            f'{colours}/{split}',
            training=split == 'train',
            transform=cfg[f'{split}_dataloader'].dataset.transform,
        )
        for split in ('train', 'val')
    )
    steps = train.transform.transforms
    assert [type(step).__name__ for step in steps] == [
        'RandomResizedCropAndInterpolation',
        'RandomHorizontalFlip',
        'RandAugment',
        'MaybeToTensor',
        'Normalize',
        'RandomErasing',
    ]
    assert steps[0].interpolation == InterpolationMode.BICUBIC
    assert (steps[-1].probability, steps[-1].per_pixel) == (0.25, True)
    assert val[0]['inputs'].shape == train[0]['inputs'].shape == (3, 224, 224)


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


@pytest.mark.slow
def test_averaged_weights_are_evaluated_and_saved(colours, tmp_path):
    cfg = small_config(colours, tmp_path, name='imagenet_polaformer_pp_b1', epochs=2)
    widths = {
        'embed_dims': (8, 8, 8, 8),
        'depths': (1,) * 4,
        'num_heads': (1,) * 4,
        'mlp_ratios': (1,) * 4,
    }
    cfg.model.backbone['arch'] = {
        **widths,
        'layer_scale': (True,) * 4,
        'layer_scale_init': (1.0,) * 4,
    }
    cfg.model.projection = 16
    cfg.default_hooks.average.momentum = 0.1
    runner = run(cfg)
    saved = torch.load(tmp_path / 'epoch_2.pth', weights_only=True)['state_dict']
    own = runner.model.state_dict()
    assert not torch.equal(saved['head.weight'], own['head.weight'])
    assert not torch.equal(saved['norm.running_mean'], own['norm.running_mean'])
    scores = runner.message_hub.get_scalar('val/accuracy/top1').data[0]
    runner.model.load_state_dict(saved)
    tested = small_config(colours, tmp_path / 'test', name='imagenet_polaformer_pp_b1')
    tested.model, tested.load_from = cfg.model, str(tmp_path / 'epoch_2.pth')
    assert Runner.from_cfg(tested).test()['accuracy/top1'] == scores[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('imagenet_pola_swin_t', {'train_dataloader.dataset.transform.auto_augment': None}),
        (
            'finetune_pola_swin_t',
            {'model.backbone.init_cfg': None, 'optim_wrapper.paramwise_cfg.decay_rate': 1.0},
        ),
    ],
)
def test_it_learns_colours(name, options, colours, tmp_path):
    options = {**options, 'optim_wrapper.optimizer.lr': 1e-2}
    runner = run(small_config(colours, tmp_path, name=name, batch=6, epochs=10, options=options))
    assert runner.message_hub.get_info('best_score') >= 80.0
    assert runner.message_hub.get_scalar('val/accuracy/top2').current() >= 80.0
