"""PolaFormer++ equals the authors' model on their files; rotary tables, layer scale, BatchNorm statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from mmpola.backbones import PolaFormerPP
from mmpola.checkpoint.load import load_weights
from mmpola.layers import positions, rotary_tables

SMALL = {
    'embed_dims': (16, 32, 64, 96),
    'depths': (1, 1, 2, 1),
    'num_heads': (1, 2, 4, 6),
    'mlp_ratios': (2,) * 4,
    'layer_scale': (True,) * 4,
    'layer_scale_init': (1,) * 4,
}
STRIDES = (4, 8, 16, 32)
ATTN_TYPES = {'polaformer_pp': 'LLSS', 'polaformer_pp_rect': ('L', 'L', 'LS', 'L')}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def authors_logits(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """1x1 convolution, BatchNorm, SiLU, average pool, 1x1 convolution to classes."""
    x = F.conv2d(x, weights['proj.weight'], weights['proj.bias'])
    x = F.batch_norm(x, *(weights[f'norm.{name}'] for name in ('running_mean', 'running_var', 'weight', 'bias')))
    return F.conv2d(F.silu(x).mean((2, 3), keepdim=True), weights['head.weight'], weights['head.bias']).flatten(1)


@pytest.mark.parametrize('name', ATTN_TYPES)
def test_matches_the_authors_features_logits_and_gradients(name, golden, tmp_path):
    record = golden(name)
    weights = record['checkpoint']['model']
    model = PolaFormerPP(SMALL, attn_types=ATTN_TYPES[name], out_norm=False)
    torch.save(record['checkpoint'], tmp_path / 'authors.pth')
    report = load_weights(model, tmp_path / 'authors.pth')
    assert {key.split('.')[0] for key in report.dropped} == {'proj', 'norm', 'head'}
    assert set(report.loaded) == set(model.state_dict())
    renamed = model.rename_weights(weights)
    for key, buffer in model.named_buffers():  # also num_batches_tracked
        assert torch.equal(buffer, renamed[key]), key

    model = model.double().eval()
    features = model(record['image_u8'].double() / 64 - 2)
    for found, expected in zip(features, record['features'], strict=True):
        assert relative_error(found, expected) < 1e-6

    logits = authors_logits(features[-1], {key: x.double() for key, x in weights.items()})
    assert relative_error(logits, record['logits']) < 1e-6

    logits.square().sum().backward()
    parameters = dict(model.named_parameters())
    for key, expected in model.rename_weights(record['grads']).items():
        assert relative_error(parameters[key].grad, expected) < 1e-5, key


@pytest.mark.parametrize(
    ('arch', 'published', 'projection'),
    [
        ('b0', 7_548_712, 2048),
        ('b1', 9_227_496, 2048),
        ('b2', 16_450_664, 2048),
        ('b3', 27_145_896, 2048),
        ('b4', 49_798_792, 2048),
        ('b5', 97_773_000, 2560),
    ],
)
def test_has_the_published_number_of_parameters(arch, published, projection):
    with torch.device('meta'):
        model = PolaFormerPP(arch, out_norm=False)
    head = (model.embed_dims[-1] + 1) * projection + 2 * projection + (projection + 1) * 1000
    assert sum(x.numel() for x in model.parameters()) == published - head


@pytest.mark.parametrize('size', [(64, 96), (33, 47), (5, 3), (128, 512)])
@pytest.mark.parametrize('attn_types', ['LLSS', 'LLLL', ('L', 'S', 'SL', 'L')])
def test_any_size_gives_maps_of_the_strides_and_a_gradient_for_every_parameter(attn_types, size):
    model = PolaFormerPP(SMALL, attn_types=attn_types)
    features = model(images(2, 3, *size))
    for found, dim, stride in zip(features, SMALL['embed_dims'], STRIDES, strict=True):
        assert found.shape == (2, dim, -(-size[0] // stride), -(-size[1] // stride))
    sum((x * images(*x.shape)).mean() for x in features).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize('channels', [8, 16])
def test_rotary_tables_rotate_pairs_by_row_then_by_column(channels):
    rows, columns, quarter = 3, 5, channels // 4
    cos, sin = rotary_tables((rows, columns), channels, torch.device('cpu'), torch.float64)
    frequencies = [10000 ** -(index / (quarter - 1)) for index in range(quarter)]
    for row in range(rows):
        for column in range(columns):
            angles = [row * f for f in frequencies for _ in range(2)] + [
                column * f for f in frequencies for _ in range(2)
            ]
            expected = torch.tensor(angles, dtype=torch.float64)
            assert_close(cos[row * columns + column], expected.cos())
            assert_close(sin[row * columns + column], expected.sin())


@pytest.fixture
def computed_tables(monkeypatch):
    """The arguments with which rotary tables are computed from now on."""
    calls = []

    def recorded(*args):
        calls.append(args)
        return rotary_tables(*args)

    monkeypatch.setattr(positions, 'rotary_tables', recorded)
    positions._tables_of_stream.cache_clear()
    return calls


def test_rotary_tables_are_computed_once_per_stage_and_width(computed_tables):
    model = PolaFormerPP(SMALL, attn_types=('L', 'L', 'LS', 'S'))
    for _ in range(2):
        model(images(1, 3, 64, 96))
    shapes = [args[:2] for args in computed_tables]
    assert shapes == [((16, 24), 32), ((8, 12), 32), ((4, 6), 32), ((4, 6), 16), ((2, 3), 16)]


def test_half_precision_reads_short_rotary_tables_in_linear_attention_only(computed_tables):
    PolaFormerPP(SMALL, attn_types=('L', 'L', 'LS', 'S')).bfloat16()(images(1, 3, 64, 96).bfloat16())
    dtypes = [args[3] for args in computed_tables]
    assert dtypes == [torch.float16, torch.float16, torch.float16, torch.float32, torch.float32]


def test_rotary_angles_are_exact_in_tables_of_half_precision():
    short, exact = (rotary_tables((300, 5), 16, None, dtype) for dtype in (torch.float16, torch.float64))
    for a, b in zip(short, exact, strict=True):
        assert a.dtype == torch.float16
        assert_close(a.double(), b, rtol=0, atol=3e-4)


def test_trains_after_a_forward_in_inference_mode():
    model = PolaFormerPP(SMALL)
    with torch.inference_mode():
        model(images(1, 3, 64, 64))
    model(images(1, 3, 64, 64))[-1].sum().backward()


@pytest.mark.parametrize('on', [True, False])
def test_only_stages_with_layer_scale_have_gammas(on):
    arch = {**SMALL, 'layer_scale': (True, True, on, on), 'layer_scale_init': (1, 1, 1e-6, 1e-6)}
    model = PolaFormerPP(arch)
    for stage, layer in enumerate(model.stages):
        for block in layer.blocks:
            gammas = [value for name, value in block.named_parameters() if name.startswith('gamma')]
            assert len(gammas) == (2 if stage < 2 or on else 0)
            for gamma in gammas:
                assert_close(gamma, torch.full_like(gamma, 1 if stage < 2 else 1e-6))
    model(images(1, 3, 64, 64))


def test_frozen_stages_keep_their_statistics():
    model = PolaFormerPP(SMALL, frozen_stages=2).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(images(2, 3, 64, 64))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]) == name.startswith(('stem.', 'stages.0.', 'stages.1.')), name


def test_norm_eval_keeps_every_statistic():
    model = PolaFormerPP(SMALL, norm_eval=True).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(images(2, 3, 64, 64))
    assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
    assert model.stages[0].blocks[0].training


def test_leaves_out_later_stages_and_still_loads_the_whole_file(golden, tmp_path):
    record = golden('polaformer_pp')
    torch.save(record['checkpoint'], tmp_path / 'authors.pth')
    model = PolaFormerPP(SMALL, out_indices=(1,), out_norm=False)
    assert len(model.stages) == 2
    load_weights(model, tmp_path / 'authors.pth')
    (feature,) = model.double().eval()(record['image_u8'].double() / 64 - 2)
    assert relative_error(feature, record['features'][1]) < 1e-6


def test_head_dimensions_that_do_not_divide_into_rotary_pairs_are_refused():
    with pytest.raises(ValueError, match='num_heads: expected a head dimension that is a multiple of 4'):
        PolaFormerPP({**SMALL, 'embed_dims': (18, 32, 64, 96)})
