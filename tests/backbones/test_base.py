"""The contract that every backbone keeps: shapes, gradients, freezing, recomputation, state dicts,
export.
"""

import copy
import inspect
import pickle
import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close
from torch.torch_version import TorchVersion

from mmpola import backbones
from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaPVTv2, PolaSwin
from mmpola.backbones.base import Backbone
from mmpola.backbones.weight_names import to_released
from mmpola.checkpoint.load import load_weights
from mmpola.layers import LinearAttention, position_tables
from mmpola.zoo import NAMED

PYRAMID = {
    'embed_dims': (8, 16, 24, 32),
    'depths': (1, 2, 2, 1),
    'num_heads': (1, 2, 3, 4),
    'mlp_ratios': (2, 2, 2, 2),
}
LAYER_SCALE = {'layer_scale': (True, True, True, False), 'layer_scale_init': (1, 1, 0.1, 1)}
DEIT = {'arch': {'embed_dims': 16, 'depth': 4, 'num_heads': 2}, 'out_indices': range(4)}
SMALL = {
    'PolaSwin': (
        PolaSwin,
        {'arch': {'embed_dims': 16, 'depths': (1, 2, 2, 1), 'num_heads': (1, 2, 4, 8)}},
    ),
    'PolaPVT': (PolaPVT, {'arch': PYRAMID}),
    'PolaPVT reduced': (
        PolaPVT,
        {'arch': PYRAMID, 'attn_types': 'LLSS', 'pola_sr_ratios': (4, 2, 1, 1)},
    ),
    'PolaPVTv2': (PolaPVTv2, {'arch': PYRAMID}),
    'PolaPVTv2 softmax': (PolaPVTv2, {'arch': PYRAMID, 'attn_types': ('L', 'LS', 'LS', 'S')}),
    'PolaFormerPP': (PolaFormerPP, {'arch': {**PYRAMID, **LAYER_SCALE}}),
    'PolaDeiT': (PolaDeiT, DEIT),
    'PolaDeiT deformable': (PolaDeiT, {**DEIT, 'gate': False, 'mixing': 'dcn'}),
    'PolaDeiT softmax': (
        PolaDeiT,
        {**DEIT, 'attn_types': 'LLSS', 'mixing': None, 'polarity': False},
    ),
}
CLASSES = list(dict.fromkeys(cls for cls, _ in SMALL.values()))
SIZES = [(33, 47), (97, 130), (5, 3)]

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
def test_images_are_independent_of_their_batch(name):
    model = build(name).double().eval()
    x = torch.randn(3, 3, 50, 70, dtype=torch.float64)
    with torch.no_grad():
        for together, alone in zip(model(x), model(x[1:2]), strict=True):
            assert_close(together[1:2], alone)


def gradients(model, x):
    """Return the gradient of the sum of squares for each parameter; eval mode."""
    maps = model.eval()(x)
    loss = sum(y.square().sum() for y in maps)
    return torch.autograd.grad(loss, list(model.parameters()))


@EVERY_SMALL
@pytest.mark.parametrize('size', [(64, 64), (97, 130)])
def test_gradients_of_one_image_are_half_of_those_of_the_image_twice(name, size):
    """On a CPU, PyTorch's BatchNorm reads some gradients of a batch of one in the wrong order."""
    model = build(name).double()
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    once = gradients(model, image)
    twice = gradients(model, image.repeat(2, 1, 1, 1))
    for (key, _), found, expected in zip(model.named_parameters(), once, twice, strict=True):
        assert_close(2 * found, expected, msg=lambda text, key=key: f'{key}: {text}')


@EVERY_SMALL
@pytest.mark.parametrize(
    ('outputs', 'out_norm'), [('all', True), ('last', False), ('inner', True), ('first', False)]
)
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
@pytest.mark.parametrize('frozen_stages', [-1, 0, 2, 4])
def test_freezing_freezes_exactly_what_it_says(name, frozen_stages):
    stages = build(name).num_stages
    model = build(name, frozen_stages=frozen_stages, out_norm=True, drop_rate=0.1)
    frozen = ('stem.',) if frozen_stages >= 0 else ()
    frozen += tuple(
        f'{part}.{stage}.' for stage in range(frozen_stages) for part in ('stages', 'norms')
    )
    for key, parameter in model.named_parameters():
        assert parameter.requires_grad != key.startswith(frozen), key
    for prepare in (lambda: model, model.train):  # as constructed, and after a call of train()
        prepare()
        for key, module in model.named_modules():
            if key not in ('', 'stages', 'norms'):
                assert module.training != f'{key}.'.startswith(frozen), key
    assert any(p.requires_grad for p in model.parameters()) == (frozen_stages < stages)


@EVERY_SMALL
@pytest.mark.parametrize('out_norm', [False, True])
def test_parameters_have_the_same_names_in_every_family(name, out_norm):
    model = build(name, out_norm=out_norm)
    pattern = r'stem\.|stages\.\d\.(downsample\.|pos_embed$|blocks\.\d\.)|norms\.\d\.'
    assert [key for key in model.state_dict() if not re.match(pattern, key)] == []
    released = to_released(model.state_dict(), model.released_names)
    assert len(released) == len(model.state_dict())
    other = build(name, out_norm=out_norm)
    other.load_state_dict(released)
    assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


@EVERY_SMALL
def test_the_constructor_calls_no_method_that_a_subclass_may_override(name):
    """A subclass can therefore rely on its own constructor having run when one of its methods is
    called.
    """

    def refuse(*_args, **_kwargs):
        raise AssertionError('called in the constructor')

    cls, small = SMALL[name]
    public = [
        key
        for base in (Backbone, cls)
        for key, value in vars(base).items()
        if inspect.isfunction(value)
    ]
    final = {'add_output_norms', 'freeze_stages'}
    methods = {key: refuse for key in public if not key.startswith('_') and key not in final}
    assert {'train', 'forward', 'stage_maps', 'init_weights'} <= set(methods)
    type('Subclass', (cls,), methods)(**small, frozen_stages=2, norm_eval=True)


@EVERY_SMALL
def test_layers_start_from_a_narrow_normal_distribution(name):
    """Truncated normal with standard deviation 0.02, biases 0: the linear layers, in PolaFormer++
    the convolutions.
    """
    drawn = torch.nn.Conv2d if name == 'PolaFormerPP' else torch.nn.Linear
    for module in build(name).modules():
        if isinstance(module, drawn) and module.weight.numel() > 300:
            assert 0.015 < module.weight.std() < 0.025
            assert module.bias is None or not module.bias.any()


@EVERY_SMALL
def test_checkpointing_changes_neither_outputs_nor_gradients(name):
    plain, recomputing = build(name), build(name, with_cp=True)
    recomputing.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    for model in (plain, recomputing):
        sum(y.square().sum() for y in model(x)).backward()
    for (key, a), (_, b) in zip(
        plain.named_parameters(), recomputing.named_parameters(), strict=True
    ):
        assert_close(a.grad, b.grad, msg=key)


@EVERY_SMALL
def test_norm_eval_keeps_batch_norms_in_eval_mode(name):
    for norm_eval in (True, False):
        model = build(name, norm_eval=norm_eval).train()
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        assert all(norm.training != norm_eval for norm in norms)
        assert model.training and model.stages[0].blocks[0].training


@EVERY_SMALL
def test_copies_pickles_and_state_dicts_give_the_same_maps(name):
    model = build(name).eval()
    loaded = build(name).eval()
    loaded.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            for a, b in zip(model(x), other(x), strict=True):
                assert_close(a, b, rtol=0, atol=0)


@EVERY_SMALL
@pytest.mark.parametrize('size', [(128, 128), (64, 256), (72, 136)])
def test_tables_are_resized_alike_on_loading_at_once_and_in_the_forward_pass(name, size, tmp_path):
    """At 128 a later stage has as many tokens as the first had in training; at 64 x 256 the second
    has: the number of tokens does not tell the grid that a table was learned on.
    """
    learned, resized = (build(name, pretrain_img_size=side).eval() for side in (64, size))
    x, tables = torch.randn(1, 3, *size), position_tables(learned)
    with torch.no_grad():
        for key in tables:
            table = learned.get_parameter(key)
            table.normal_()
        torch.save(learned.state_dict(), tmp_path / 'learned.pth')
        report = load_weights(resized, tmp_path / 'learned.pth')
        expected = learned(x)
        learned.set_input_size(size)
        assert_close(learned(x), expected, rtol=1e-4, atol=1e-4)
        assert_close(resized(x), expected, rtol=1e-4, atol=1e-4)
    assert {entry.split()[0] for entry in report.resized} == set(tables)
    assert position_tables(learned) == position_tables(resized)
    kept = dict(learned.named_parameters())
    learned.set_input_size(size)
    assert all(kept[key] is parameter for key, parameter in learned.named_parameters())


@EVERY_SMALL
def test_frozen_tables_stay_frozen_at_another_size(name):
    model = build(name, pretrain_img_size=64, frozen_stages=2)
    before = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    model.set_input_size(96)
    after = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    assert after == before


@EVERY_SMALL
def test_a_pruned_backbone_ends_with_the_map_of_its_last_stage(name):
    """A stage that was no output has no optional norm; norms between stages stay."""
    whole = build(name, out_indices=range(build(name).num_stages), out_norm=False).eval()
    model = build(name, out_indices=(whole.num_stages - 1,), out_norm=True).eval()
    model.load_state_dict(whole.state_dict(), strict=False)
    model.prune_stages(2)
    assert model.out_indices == (1,)
    assert model.out_norm == model.chained_norms
    x = torch.randn(1, 3, 64, 64)
    expected = whole(x)[1]
    if model.chained_norms:
        expected = whole.norms['1'](expected.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    (found,) = model(x)
    assert_close(found, expected)
    found.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@EVERY_SMALL
def test_a_part_of_the_stages_loads_the_whole_file(name, tmp_path):
    whole, part = build(name).eval(), build(name, out_indices=(1,)).eval()
    torch.save({'model': whole.state_dict()}, tmp_path / 'whole.pth')
    report = load_weights(part, tmp_path / 'whole.pth')
    assert {f'stages.{stage}' for stage in range(2, whole.num_stages)} <= {
        '.'.join(key.split('.')[:2]) for key in report.dropped
    }
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert_close(part(x)[0], whole(x)[1])


@EVERY_SMALL
@pytest.mark.parametrize('channels', [1, 5])
def test_weights_of_three_channels_are_converted(name, channels, tmp_path):
    """timm's rule for the stem; all other tensors are the file's."""
    pretrained = build(name).eval()
    torch.save({'model': pretrained.state_dict()}, tmp_path / 'rgb.pth')
    file = dict(type='Pretrained', checkpoint=str(tmp_path / 'rgb.pth'))
    model = build(name, in_channels=channels, init_cfg=file).eval()
    report = load_weights(model, tmp_path / 'rgb.pth')
    line = f'stem.proj converted from 3 to {channels} input channels'
    assert line in str(report)
    model.init_weights()
    weights = model.state_dict()
    for key, x in pretrained.state_dict().items():
        if key != 'stem.proj.weight':
            assert torch.equal(weights[key], x)
    stem = pretrained.state_dict()['stem.proj.weight']
    expected = stem.sum(1, keepdim=True)
    if channels > 1:
        expected = stem.repeat(1, 2, 1, 1)[:, :channels] * 3 / channels
    assert_close(weights['stem.proj.weight'], expected)


@EVERY_SMALL
def test_half_precision_and_channels_last(name):
    model = build(name).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        for a, b in zip(expected, model(x.to(memory_format=torch.channels_last)), strict=True):
            assert_close(a, b)
        for a, b in zip(expected, copy.deepcopy(model).bfloat16()(x.bfloat16()), strict=True):
            assert b.dtype == torch.bfloat16
            assert (a - b).norm() / a.norm() < 0.05


@EVERY_SMALL
def test_bfloat16_autocast_changes_little(name):
    model, x = build(name), torch.randn(2, 3, 40, 56)
    expected = copy.deepcopy(model)(x)
    with torch.autocast('cpu', torch.bfloat16):
        found = model(x)
        sum(y.float().square().sum() for y in found).backward()
    for a, b in zip(expected, found, strict=True):
        assert (a - b).norm() / a.norm() < 0.05
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < '2.11',
    reason='torch 2.6 crashes with fake CUDA tensors under autocast without a GPU',
)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@EVERY_SMALL
def test_autocast_of_a_gpu_gives_maps(name, dtype, monkeypatch):
    """Which operators are autocast differs between devices. Fake tensors have the dtypes of a GPU's
    without a GPU.
    """
    monkeypatch.setattr(torch.cuda.amp.common, 'amp_definitely_not_available', lambda: False)
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda: True)
    with torch.device('meta'):
        model = build(name)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast('cuda', dtype):
        model, images = model.to_empty(device='cuda'), torch.empty(2, 3, 40, 56, device='cuda')
        maps = model.train()(images)
    for stride, dim, x in zip(model.strides, model.embed_dims, maps, strict=True):
        assert x.shape == (2, dim, -(-40 // stride), -(-56 // stride))


@EVERY_SMALL
@pytest.mark.parametrize(('argument', 'rate'), [('drop_rate', float('nan')), ('drop_path_rate', 1)])
def test_rates_are_probabilities_below_1(name, argument, rate):
    with pytest.raises(
        ValueError, match=rf'^{argument}: expected a number in \[0, 1\), got {rate}$'
    ):
        build(name, **{argument: rate})


@EVERY_SMALL
def test_stochastic_depth_rises_linearly(name):
    model = build(name, drop_path_rate=0.5)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == 'DropPath']
    assert_close(torch.tensor(rates), torch.linspace(0, 0.5, len(rates)))
    assert len(rates) == sum(len(stage.blocks) for stage in model.stages)


@EVERY_SMALL
def test_images_of_a_wrong_shape_are_refused(name):
    model = build(name)
    for shape in ((3, 32, 32), (1, 4, 32, 32)):
        with pytest.raises(ValueError, match=r'^x: expected images \[B, 3, H, W\]'):
            model(torch.zeros(shape))


@pytest.mark.parametrize(
    'name', ['PolaPVT reduced', 'PolaPVTv2 softmax', 'PolaDeiT deformable', 'PolaDeiT softmax']
)
def test_the_exported_program_gives_equal_outputs(name):
    """Of variants; tests/journeys/openmmlab/export/test_export.py writes ONNX files."""
    model = build(name)
    model = build(name, out_indices=(model.num_stages - 1,)).eval()
    x = torch.randn(1, 3, 64, 64)
    exported = torch.export.export(model, (x,)).module()
    assert_close(exported(x)[0], model(x)[0])


@pytest.mark.parametrize(
    ('cls', 'arch'), [(cls, arch) for cls in CLASSES for arch in inspect.getmodule(cls).ARCHS]
)
def test_every_named_arch_at_an_odd_size(cls, arch):
    """Shapes and strides of the full models; on the meta device nothing is computed."""
    with torch.device('meta'):
        model = cls(arch).eval()
        maps = model(torch.empty(1, 3, 512, 683))
    for index, x in zip(model.out_indices, maps, strict=True):
        stride = model.strides[index]
        assert x.shape == (1, model.embed_dims[index], -(-512 // stride), -(-683 // stride))


@pytest.mark.parametrize('cls', CLASSES)
def test_every_arch_is_named(cls):
    named = [settings['arch'] for name, settings in NAMED.values() if name == cls.__name__]
    assert set(named) == set(inspect.getmodule(cls).ARCHS)


def test_every_backbone_passes_these_tests():
    assert {cls.__name__ for cls in CLASSES} == set(dir(backbones))


@pytest.mark.parametrize('cls', CLASSES)
def test_every_backbone_passes_the_start_of_its_gates_on(cls):
    name = next(name for name, (found, _) in SMALL.items() if found is cls)
    for gate_init in ('authors', 'open'):
        model = build(name, gate_init=gate_init)
        layers = [module for module in model.modules() if isinstance(module, LinearAttention)]
        assert layers
        for layer in layers:
            bias = layer.get_submodule(layer.gate_projection).bias[-layer.dim :]
            assert bool((bias == 1).all()) == (gate_init == 'open')
