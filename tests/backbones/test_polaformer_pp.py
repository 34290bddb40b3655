"""PolaFormer++: rotary tables, layer scale, BatchNorm statistics; its golden test is in
test_golden.py.
"""

import pytest
import torch
from torch.testing import assert_close

from mmpola.backbones import PolaFormerPP
from mmpola.layers import rotary, rotary_tables, softmax
from tests.helpers.models import Launches

SMALL = {
    'embed_dims': (16, 32, 64, 96),
    'depths': (1, 1, 2, 1),
    'num_heads': (1, 2, 4, 6),
    'mlp_ratios': (2,) * 4,
    'layer_scale': (True,) * 4,
    'layer_scale_init': (1,) * 4,
}


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


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

    for module in (rotary, softmax):
        monkeypatch.setattr(module, 'rotary_tables', recorded)
    rotary._cached_rotary_tables.cache_clear()
    softmax._cached_complex_rotations.cache_clear()
    return calls


def test_rotary_tables_are_computed_once_per_stage_and_width(computed_tables):
    model = PolaFormerPP(SMALL, attn_types=('L', 'L', 'LS', 'S'))
    for _ in range(2):
        model(images(1, 3, 64, 96))
    shapes = [args[:2] for args in computed_tables]
    assert shapes == [((16, 24), 32), ((8, 12), 32), ((4, 6), 32), ((4, 6), 16), ((2, 3), 16)]


def test_half_precision_reads_short_rotary_tables_in_linear_attention_only(computed_tables):
    PolaFormerPP(SMALL, attn_types=('L', 'L', 'LS', 'S')).bfloat16()(
        images(1, 3, 64, 96).bfloat16()
    )
    dtypes = [args[3] for args in computed_tables]
    assert dtypes == [torch.float16, torch.float16, torch.float16, torch.float32, torch.float32]


def test_rotary_angles_are_exact_in_tables_of_half_precision():
    short, exact = (
        rotary_tables((300, 5), 16, None, dtype) for dtype in (torch.float16, torch.float64)
    )
    for a, b in zip(short, exact, strict=True):
        assert a.dtype == torch.float16
        assert_close(a.double(), b, rtol=0, atol=3e-4)


def test_trains_after_a_forward_in_inference_mode():
    model = PolaFormerPP(SMALL)
    with torch.inference_mode():
        model(images(1, 3, 64, 64))
    model(images(1, 3, 64, 64))[-1].sum().backward()


def rotated(qk, grid, dtype):
    """Rotate [B, N, 2 H, D] by (E10) in a dtype, as written, and return the queries and the keys in
    their own.
    """
    cos, sin = (table[:, None] for table in rotary_tables(grid, qk.shape[-1], None, dtype))
    even, odd = qk.unflatten(-1, (-1, 2)).unbind(-1)
    turned = qk * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin
    return turned.to(qk.dtype).chunk(2, dim=2)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_queries_and_keys_are_rotated_in_at_least_float32(dtype):
    """With the head dimension of the published models every bit is that of the equation."""
    grid, exact = (5, 7), torch.float64 if dtype == torch.float64 else torch.float32
    qk = images(2, 35, 4, 64).to(dtype).requires_grad_()
    outputs = [softmax.rotate_queries_and_keys(qk, grid), rotated(qk, grid, exact)]
    grads = [images(2, 35, 2, 64).to(dtype), 2 * images(2, 35, 2, 64).to(dtype)]
    found, expected = (
        torch.autograd.grad(q_and_k, qk, grads, retain_graph=True)[0] for q_and_k in outputs
    )
    assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    assert_close(
        found, expected, rtol=0 if dtype == exact else 1e-2, atol=0 if dtype == exact else 1e-2
    )


def test_the_rotation_has_derivatives_of_every_order():
    qk = images(1, 6, 2, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda qk: softmax.rotate_queries_and_keys(qk, (2, 3)), qk)
    assert torch.autograd.gradgradcheck(lambda qk: softmax.rotate_queries_and_keys(qk, (2, 3)), qk)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_a_rotation_launches_at_most_ten_operations(dtype, monkeypatch):
    qk = images(1, 6, 2, 8).to(dtype).requires_grad_()
    monkeypatch.setattr(softmax, 'cache_key', lambda x: (x.device, None))
    with Launches() as launches:
        softmax.rotate_queries_and_keys(qk, (2, 3))
        launches.clear()  # of the tables, which are kept
        q, k = softmax.rotate_queries_and_keys(qk, (2, 3))
        torch.autograd.backward([q, k], [q.detach(), k.detach()])
    assert len(launches) <= 10, launches


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
