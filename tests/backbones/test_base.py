"""The contract that every backbone keeps: shapes, gradients, freezing, recomputation, state dicts, export."""

import copy
import inspect
import pickle
from operator import attrgetter

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mmpola.backbones import (
    PolaDeiT,
    PolaFormerPP,
    PolaPVT,
    PolaPVTv2,
    PolaSwin,
    pola_deit,
    pola_pvt,
    pola_pvt_v2,
    pola_swin,
    polaformer_pp,
)
from mmpola.backbones.base import Backbone
from mmpola.backbones.named import NAMED

MODULES = {
    pola_swin: PolaSwin,
    pola_pvt: PolaPVT,
    pola_pvt_v2: PolaPVTv2,
    pola_deit: PolaDeiT,
    polaformer_pp: PolaFormerPP,
}
PYRAMID = {'embed_dims': (8, 16, 24, 32), 'depths': (1, 2, 2, 1), 'num_heads': (1, 2, 3, 4), 'mlp_ratios': (2, 2, 2, 2)}
LAYER_SCALE = {'layer_scale': (True, True, True, False), 'layer_scale_init': (1, 1, 0.1, 1)}
DEIT = {'arch': {'embed_dims': 16, 'depth': 4, 'num_heads': 2}, 'out_indices': range(4)}
SMALL = {
    'PolaSwin': (PolaSwin, {'arch': {'embed_dims': 16, 'depths': (1, 2, 2, 1), 'num_heads': (1, 2, 4, 8)}}),
    'PolaPVT': (PolaPVT, {'arch': PYRAMID}),
    'PolaPVT reduced': (PolaPVT, {'arch': PYRAMID, 'attn_types': 'LLSS', 'pola_sr_ratios': (4, 2, 1, 1)}),
    'PolaPVTv2': (PolaPVTv2, {'arch': PYRAMID}),
    'PolaPVTv2 softmax': (PolaPVTv2, {'arch': PYRAMID, 'attn_types': ('L', 'LS', 'LS', 'S')}),
    'PolaFormerPP': (PolaFormerPP, {'arch': {**PYRAMID, **LAYER_SCALE}}),
    'PolaDeiT': (PolaDeiT, DEIT),
    'PolaDeiT deformable': (PolaDeiT, {**DEIT, 'gate': False, 'mixing': 'dcn'}),
    'PolaDeiT softmax': (PolaDeiT, {**DEIT, 'attn_types': 'LLSS', 'mixing': None, 'polarity': False}),
}
SIZES = [(64, 96), (33, 47), (97, 130)]

EVERY_SMALL = pytest.mark.parametrize('name', SMALL)


def build(name, **arguments):
    cls, small = SMALL[name]
    return cls(**{**small, 'drop_path_rate': 0.0, **arguments})


@EVERY_SMALL
@pytest.mark.parametrize('size', SIZES)
def test_strides_and_channels_at_any_size(name, size):
    model = build(name).eval()
    with torch.no_grad():
        maps = model(torch.randn(1, 3, *size))
    for stride, dim, x in zip(model.strides, model.embed_dims, maps, strict=True):
        assert x.shape == (1, dim, -(-size[0] // stride), -(-size[1] // stride))
        assert torch.isfinite(x).all()


@EVERY_SMALL
def test_large_images_of_odd_sides(name):
    model = build(name).eval()
    with torch.no_grad():
        maps = model(torch.randn(1, 3, 512, 683))
    sides = {4: (128, 171), 8: (64, 86), 16: (32, 43), 32: (16, 22)}
    assert [tuple(x.shape[2:]) for x in maps] == [sides[stride] for stride in model.strides]


@EVERY_SMALL
def test_images_are_independent_of_their_batch(name):
    model = build(name).double().eval()
    x = torch.randn(3, 3, 50, 70, dtype=torch.float64)
    with torch.no_grad():
        for together, alone in zip(model(x), model(x[1:2]), strict=True):
            torch.testing.assert_close(together[1:2], alone)


@EVERY_SMALL
@pytest.mark.parametrize('out_norm', [False, True])
@pytest.mark.parametrize('outputs', ['all', 'last', 'inner', 'first'])
def test_every_parameter_gets_a_gradient(name, outputs, out_norm):
    """DistributedDataParallel requires it: nothing is built that forward does not use."""
    stages = build(name).num_stages
    out_indices = {
        'all': range(stages),
        'last': (stages - 1,),
        'inner': sorted({stages // 3, stages // 2}),
        'first': (0,),
    }[outputs]
    model = build(name, out_indices=out_indices, out_norm=out_norm)
    maps = model(torch.randn(2, 3, 64, 96))
    assert len(maps) == len(out_indices)
    sum(x.square().sum() for x in maps).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@EVERY_SMALL
def test_out_norm_normalises_each_output(name):
    images = torch.randn(1, 3, 64, 64)
    for x in build(name, out_norm=True)(images):
        assert x.mean(1).abs().max() < 1e-4
    plain = build(name, out_norm=False)
    assert not plain.out_norm
    for x in plain(images):
        assert x.mean(1).abs().max() > 1e-3


@EVERY_SMALL
@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 3, 4])
def test_freezing_freezes_exactly_what_it_says(name, frozen_stages):
    stages = build(name).num_stages
    frozen_stages = min(frozen_stages, stages)
    model = build(name, frozen_stages=frozen_stages, out_norm=True)
    frozen = {id(p) for stage in range(frozen_stages + 1) for p in stage_parameters(model, stage)}
    for key, parameter in model.named_parameters():
        assert parameter.requires_grad == (id(parameter) not in frozen), key
    for prepare in (lambda: model, model.train):  # as constructed, and after a call of train()
        prepare()
        for stage in range(stages + 1):
            for part in stage_parts(model, stage):
                if isinstance(part, torch.nn.Module):
                    assert all(m.training == (stage > frozen_stages) for m in part.modules())
    assert any(p.requires_grad for p in model.parameters()) == (frozen_stages < stages)


def stage_parts(model, stage):
    return [attrgetter(name)(model) for name in model.stage_parts[stage]]


def stage_parameters(model, stage):
    for part in stage_parts(model, stage):
        yield from [part] if isinstance(part, torch.nn.Parameter) else part.parameters()


@EVERY_SMALL
@pytest.mark.parametrize('out_norm', [False, True])
def test_every_parameter_belongs_to_one_stage(name, out_norm):
    model = build(name, out_norm=out_norm)
    owned = [id(p) for stage in range(model.num_stages + 1) for p in stage_parameters(model, stage)]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())


@EVERY_SMALL
def test_output_norms_belong_to_their_stage(name):
    model = build(name, out_norm=True)
    for stage in range(1, model.num_stages + 1):
        norms = [key for key in model.stage_parts[stage] if key.startswith('norm')]
        assert len(norms) == 1
        assert getattr(model, norms[0]).normalized_shape == (model.embed_dims[stage - 1],)


@EVERY_SMALL
def test_the_constructor_calls_no_method_that_a_subclass_may_override(name):
    """A subclass can therefore rely on its own constructor having run when one of its methods is called."""

    def refuse(*_args, **_kwargs):
        raise AssertionError('called in the constructor')

    cls, small = SMALL[name]
    public = [key for base in (Backbone, cls) for key, value in vars(base).items() if inspect.isfunction(value)]
    methods = {key: refuse for key in public if not key.startswith('_')}
    assert {'train', 'forward', 'stage_maps', 'init_weights'} <= set(methods)
    type('Subclass', (cls,), methods)(**small, frozen_stages=2, norm_eval=True)


@EVERY_SMALL
def test_linear_layers_start_from_a_narrow_normal_distribution(name):
    """Truncated normal with standard deviation 0.02, biases 0, as in Swin, PVT and DeiT."""
    for module in build(name).modules():
        if isinstance(module, torch.nn.Linear):
            assert 0.015 < module.weight.std() < 0.025
            assert module.bias is None or not module.bias.any()


@EVERY_SMALL
def test_checkpointing_changes_neither_outputs_nor_gradients(name):
    plain, recomputing = build(name), build(name, with_cp=True)
    recomputing.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    for model in (plain, recomputing):
        sum(y.square().sum() for y in model(x)).backward()
    for (key, a), (_, b) in zip(plain.named_parameters(), recomputing.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=key)


@EVERY_SMALL
def test_norm_eval_keeps_batch_norms_in_eval_mode(name):
    for norm_eval in (True, False):
        model = build(name, norm_eval=norm_eval).train()
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        assert all(norm.training != norm_eval for norm in norms)
        assert model.training


@EVERY_SMALL
def test_copies_pickles_and_state_dicts_give_the_same_maps(name):
    model = build(name).eval()
    loaded = build(name).eval()
    loaded.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            for a, b in zip(model(x), other(x), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)


@EVERY_SMALL
def test_half_precision_and_channels_last(name):
    model = build(name).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        for a, b in zip(expected, model(x.to(memory_format=torch.channels_last)), strict=True):
            torch.testing.assert_close(a, b)
        for a, b in zip(expected, copy.deepcopy(model).bfloat16()(x.bfloat16()), strict=True):
            assert b.dtype == torch.bfloat16
            assert (a - b).norm() / a.norm() < 0.05


@EVERY_SMALL
@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_bfloat16_autocast_changes_little(name, mode):
    model, x = build(name).train(mode == 'train'), torch.randn(2, 3, 40, 56)
    expected = copy.deepcopy(model)(x)
    with torch.autocast('cpu', torch.bfloat16):
        found = model(x)
        sum(y.float().square().sum() for y in found).backward()
    for a, b in zip(expected, found, strict=True):
        assert (a - b).norm() / a.norm() < 0.05
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('mode', ['train', 'eval'])
@EVERY_SMALL
def test_autocast_of_a_gpu_gives_maps(name, mode, dtype, monkeypatch):
    """Which operators are autocast differs between devices. Fake tensors have the dtypes of a GPU's without a GPU."""
    monkeypatch.setattr(torch.cuda.amp.common, 'amp_definitely_not_available', lambda: False)
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda: True)
    with torch.device('meta'):
        model = build(name).train(mode == 'train')
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast('cuda', dtype):
        maps = model.to_empty(device='cuda')(torch.empty(2, 3, 40, 56, device='cuda'))
    for stride, dim, x in zip(model.strides, model.embed_dims, maps, strict=True):
        assert x.shape == (2, dim, -(-40 // stride), -(-56 // stride))


@EVERY_SMALL
@pytest.mark.parametrize('argument', ['drop_rate', 'drop_path_rate'])
@pytest.mark.parametrize('rate', [-0.1, 1, float('nan')])
def test_rates_are_probabilities_below_1(name, argument, rate):
    with pytest.raises(ValueError) as raised:
        build(name, **{argument: rate})
    assert str(raised.value) == f'{argument}: expected a number in [0, 1), got {rate!r}'


@EVERY_SMALL
def test_stochastic_depth_rises_linearly(name):
    model = build(name, drop_path_rate=0.5)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == 'DropPath']
    torch.testing.assert_close(torch.tensor(rates), torch.linspace(0, 0.5, len(rates)))
    assert len(rates) == (4 if SMALL[name][0] is PolaDeiT else 6)


@EVERY_SMALL
def test_no_default_is_mutable(name):
    for parameter in inspect.signature(SMALL[name][0]).parameters.values():
        assert not isinstance(parameter.default, (list, dict, set))


@EVERY_SMALL
@pytest.mark.parametrize('shape', [(3, 32, 32), (1, 4, 32, 32)])
def test_images_of_a_wrong_shape_are_refused(name, shape):
    with pytest.raises(ValueError) as raised:
        build(name)(torch.zeros(shape))
    assert str(raised.value) == f'x: expected images [B, 3, H, W], got {list(shape)}'


@EVERY_SMALL
def test_the_exported_program_gives_equal_outputs(name):
    model = build(name)
    model = build(name, out_indices=(model.num_stages - 1,)).eval()
    x = torch.randn(1, 3, 64, 64)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x)[0], model(x)[0])


@pytest.mark.parametrize(('cls', 'arch'), [(cls, arch) for module, cls in MODULES.items() for arch in module.ARCHS])
@pytest.mark.parametrize('size', [(224, 224), (256, 320), (512, 683), (33, 47)])
def test_every_named_arch_at_every_size(cls, arch, size):
    """Shapes and strides of the full models; on the meta device nothing is computed."""
    with torch.device('meta'):
        model = cls(arch).eval()
        maps = model(torch.empty(1, 3, *size))
    for index, x in zip(model.out_indices, maps, strict=True):
        stride = model.strides[index]
        assert x.shape == (1, model.embed_dims[index], -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize('module', MODULES, ids=lambda module: MODULES[module].__name__)
def test_every_arch_is_named_and_described(module, root):
    cls = MODULES[module]
    (row,) = (
        x for x in (root / 'docs' / 'models.md').read_text().splitlines() if x.startswith(f'| `mmpola.{cls.__name__}`')
    )
    assert row.split('|')[2].strip() == f'`{" ".join(module.ARCHS)}`'
    assert {settings['arch'] for backbone, settings in NAMED.values() if backbone is cls} == set(module.ARCHS)


def test_every_backbone_passes_these_tests():
    assert {cls for cls, _ in SMALL.values()} == set(MODULES.values()) == {cls for cls, _ in NAMED.values()}
