"""The ImageNet configs equal the published recipes, and they train."""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS
from mmengine.runner import Runner
from torchvision.transforms import InterpolationMode

from mmpola.data.class_folders import ClassFolders
from tests.helpers.small_training import run, small_config

RECIPES = {'pola_swin': (20, 5.0, None), 'pola_pvt': (5, None, None), 'polaformer_pp': (20, None, 0.99982)}
"""Family -> warm-up epochs, gradient clipping norm, decay of the averaged weights."""

ABLATIONS = {
    'no_gate': {'gate': False},
    'no_mixing': {'mixing': None},
    'dcn': {'mixing': 'dcn'},
    'no_polarity': {'polarity': False},
}
"""End of a config's name -> what it changes in imagenet_pola_deit_t."""

PUBLISHED = {
    **{f'imagenet_pola_swin_{size}': RECIPES['pola_swin'] for size in 'tsb'},
    **{f'imagenet_pola_pvt_{size}': RECIPES['pola_pvt'] for size in ('t', 's', 'm', 'l', 'v2_b0', 'v2_b1')},
    **{f'imagenet_{model}': RECIPES['pola_pvt'] for model in ('pola_deit_t', 'deit_t')},
    **{f'imagenet_pola_deit_t_{ablation}': RECIPES['pola_pvt'] for ablation in ABLATIONS},
    'imagenet_swin_t': RECIPES['pola_swin'],
    **{f'imagenet_polaformer_pp_b{size}': RECIPES['polaformer_pp'] for size in range(6)},
}
OTHER_RECIPES = {'imagenet_pola_swin_b_384', 'imagenet_pola_swin_shapes'}


def test_every_config_is_compared_with_a_recipe(root):
    names = {path.stem for path in (root / 'configs').glob('imagenet_*.py')}
    assert names == set(PUBLISHED) | OTHER_RECIPES


def test_fine_tuning_at_384_starts_from_224(root):
    cfg = read(root, 'imagenet_pola_swin_b_384')
    assert cfg.model.init_cfg == {'type': 'Pretrained', 'checkpoint': 'mmpola://pola_swin_base'}
    assert (cfg.model.backbone.window_size, cfg.model.backbone.pretrain_img_size) == (12, 384)
    sizes = [cfg[f'{split}_dataloader'].dataset.transform.input_size for split in ('train', 'val', 'test')]
    assert sizes == [384, 384, 384]
    assert (cfg.optim_wrapper.optimizer.lr * 512 / 1024, cfg.optim_wrapper.optimizer.weight_decay) == (2e-5, 1e-8)
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].end) == (30, 30)


def same_but(cfg, other, changes):
    """Whether a config equals another one after `changes` of the backbone."""
    expected = other.to_dict()
    expected['model']['backbone'].update(changes)
    return cfg.to_dict() == expected


@pytest.mark.parametrize('ablation', ABLATIONS)
def test_an_ablation_differs_from_pola_deit_in_one_argument(ablation, root):
    cfg = read(root, f'imagenet_pola_deit_t_{ablation}')
    assert same_but(cfg, read(root, 'imagenet_pola_deit_t'), ABLATIONS[ablation])


@pytest.mark.parametrize(('name', 'attn_types'), [('deit_t', 'S'), ('swin_t', 'SSSS')])
def test_a_baseline_differs_in_its_attention_only(name, attn_types, root):
    cfg = read(root, f'imagenet_{name}')
    assert same_but(cfg, read(root, f'imagenet_pola_{name}'), {'attn_types': attn_types})


@pytest.mark.parametrize('family', ['swin', 'pvt'])
def test_the_fine_tuning_recipe(family, root):
    """Pretrained backbone, layer decay with the full rate for the head, an epoch of warm-up, no mixing."""
    cfg = read(root, f'finetune_pola_{family}_t')
    assert cfg.model.backbone.init_cfg.checkpoint == f'mmpola://pola_{family}_tiny'
    assert 'mixup' not in cfg.model.data_preprocessor and 'auto_augment' not in cfg.train_dataloader.dataset.transform
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


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_published_recipe(name, root):
    cfg, (warmup, clip, decay) = read(root, name), PUBLISHED[name]
    assert cfg.optim_wrapper.optimizer.to_dict() == {
        'type': 'AdamW',
        'lr': 1e-3,
        'betas': (0.9, 0.999),
        'weight_decay': 0.05,
    }
    assert cfg.optim_wrapper.paramwise_cfg == {'norm_decay_mult': 0.0, 'bias_decay_mult': 0.0, 'flat_decay_mult': 0.0}
    assert cfg.auto_scale_lr == {'enable': True, 'base_batch_size': 1024}
    assert cfg.optim_wrapper.get('clip_grad', {}).get('max_norm') == clip
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[0].end, cfg.param_scheduler[1].T_max) == (
        300,
        warmup,
        300 - warmup,
    )
    average = cfg.default_hooks.get('average')
    assert (average is None) == (decay is None)
    assert average is None or 1 - average.momentum == pytest.approx(decay)
    assert {'checkpoint', 'preemption', 'finite_loss', 'class_count'} < set(cfg.default_hooks)


@pytest.mark.parametrize(
    'name', [f'imagenet_{x}' for x in ('pola_swin_t', 'pola_pvt_t', 'pola_deit_t', 'polaformer_pp_b0')]
)
def test_what_is_decayed(name, root):
    """One config per family; `test_the_published_recipe` compares the rules of all."""
    cfg = read(root, name)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert model.data_preprocessor.num_classes == 1000
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {id(p): group['weight_decay'] for group in wrapper.optimizer.param_groups for p in group['params']}
    free = {key for key, p in model.named_parameters() if decay[id(p)] == 0.0}
    assert free == {key for key, p in model.named_parameters() if p.ndim == 1 or key.endswith('.bias')}
    if 'swin' in name:
        assert {f'backbone.stages.0.blocks.0.attn.feature_map.{name}' for name in ('power', 'scale')}.isdisjoint(free)


def test_the_learning_rate_warms_up_and_falls_by_the_cosine(root):
    cfg = read(root, 'imagenet_pola_pvt_t')
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedulers = [
        PARAM_SCHEDULERS.get(part.pop('type')).build_iter_from_epoch(
            optimizer=optimizer, epoch_length=2, **{key: x for key, x in part.items() if key != 'convert_to_iter_based'}
        )
        for part in cfg.param_scheduler
    ]
    rates = []
    for _ in range(600):
        rates.append(optimizer.param_groups[0]['lr'])
        for scheduler in schedulers:
            scheduler.step()
    assert rates[0] == pytest.approx(1e-3)
    assert rates[10] == pytest.approx(1.0)
    cosine = 0.5 * (1 + torch.cos(torch.tensor(torch.pi) * 295 / 590)).item()
    assert rates[305] == pytest.approx(0.01 + 0.99 * cosine, abs=2e-3)
    assert rates[-1] == pytest.approx(0.01, abs=1e-3)


def test_the_transforms_are_timms(root, colours):
    cfg = read(root, 'imagenet_pola_swin_t')
    train, val = (
        ClassFolders(
            f'{colours}/{split}', training=split == 'train', transform=cfg[f'{split}_dataloader'].dataset.transform
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
    resize, crop = val.transform.transforms[:2]
    assert (resize.size, resize.interpolation, tuple(crop.size)) == (256, InterpolationMode.BICUBIC, (224, 224))
    assert val[0]['inputs'].shape == train[0]['inputs'].shape == (3, 224, 224)


@pytest.mark.slow
def test_averaged_weights_are_evaluated_and_saved(colours, tmp_path):
    cfg = small_config(colours, tmp_path, name='imagenet_polaformer_pp_b1', epochs=2)
    widths = {'embed_dims': (8, 8, 8, 8), 'depths': (1,) * 4, 'num_heads': (1,) * 4, 'mlp_ratios': (1,) * 4}
    cfg.model.backbone['arch'] = {**widths, 'layer_scale': (True,) * 4, 'layer_scale_init': (1.0,) * 4}
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
        ('finetune_pola_swin_t', {'model.backbone.init_cfg': None, 'optim_wrapper.paramwise_cfg.decay_rate': 1.0}),
    ],
)
def test_it_learns_colours(name, options, colours, tmp_path):
    options = {**options, 'optim_wrapper.optimizer.lr': 1e-2}
    runner = run(small_config(colours, tmp_path, name=name, batch=6, epochs=10, options=options))
    assert runner.message_hub.get_info('best_score') >= 80.0
    assert runner.message_hub.get_scalar('val/accuracy/top2').current() >= 80.0
