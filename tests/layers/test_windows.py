"""Attention in shifted windows on maps of any size, compared with dense attention between the
visible tokens.
"""

import pytest
import torch

from mmpola.backbones import PolaSwin
from mmpola.layers import WindowAttention, find_windows, windows
from mmpola.layers.traced_windows import cut_operator, join_operator, mask_operator
from mmpola.layers.windows import IndexedWindows, Windows, cached_windows
from tests.helpers.models import Launches


def visible_pairs(grid, size, shift):
    """[N, N] bool: whether two tokens are in the same (shifted) window of the unpadded map."""
    shifts = [shift if side > size else 0 for side in grid]
    cell = torch.tensor(
        [
            [
                (row + size - shifts[0]) // size * 1000 + (column + size - shifts[1]) // size
                for column in range(grid[1])
            ]
            for row in range(grid[0])
        ]
    ).flatten()
    return cell[:, None] == cell[None, :]


def dense_attention(attention, x, grid):
    """Use the same weights in one [N, N] softmax over all pairs of tokens, with the invisible pairs
    masked out.
    """
    size, heads, (rows, columns) = attention.window_size, attention.num_heads, grid
    q, k, v = attention.qkv(x).unflatten(-1, (3, heads, -1)).unbind(2)
    row, column = (
        i.flatten()
        for i in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing='ij')
    )
    offset_rows, offset_columns = row[:, None] - row[None, :], column[:, None] - column[None, :]
    visible = visible_pairs(grid, size, attention.shift)
    index = (offset_rows + size - 1) * (2 * size - 1) + offset_columns + size - 1
    bias = attention.relative_position_bias_table[index.masked_fill(~visible, 0)].permute(2, 0, 1)
    scores = torch.einsum('bnhd,bmhd->bhnm', q, k) / q.shape[-1] ** 0.5 + bias
    weights = scores.masked_fill(~visible, float('-inf')).softmax(-1)
    return attention.proj(torch.einsum('bhnm,bmhd->bnhd', weights, v).flatten(2))


@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('grid', [(6, 9), (7, 8), (3, 3), (2, 2), (2, 11), (3, 7), (1, 1)])
def test_equals_dense_attention_between_visible_tokens(grid, shift):
    attention = WindowAttention(8, 2, 3, shift=shift).double()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    found = attention(x, find_windows(x, grid, 3, shift))
    torch.testing.assert_close(found, dense_attention(attention, x, grid))


@pytest.mark.skipif(
    not hasattr(torch.compiler, '_is_exporting_flag'),
    reason='torch 2.6 does not say that it exports; the extra `export` needs 2.11',
)
@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('grid', [(6, 9), (7, 8), (3, 3), (2, 11), (1, 1)])
def test_exporters_gather_the_same_windows(grid, shift, monkeypatch):
    attention = WindowAttention(8, 2, 3, shift=shift).double()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    expected = attention(x, find_windows(x, grid, 3, shift))
    for flag in ('_is_compiling_flag', '_is_exporting_flag'):  # torch.export sets both
        monkeypatch.setattr(torch.compiler, flag, True)
    windows = find_windows(x, grid, 3, shift)
    assert not isinstance(windows, IndexedWindows)
    torch.testing.assert_close(attention(x, windows), expected)


def test_there_is_no_mask_if_every_token_sees_its_whole_window():
    assert find_windows(torch.empty(2, 54, 8), (6, 9), 3, 0).mask is None
    assert find_windows(torch.empty(2, 9, 8), (3, 3), 3, 1).mask is None
    assert find_windows(torch.empty(2, 54, 8), (6, 9), 3, 1).mask.shape == (2 * 6, 1, 9, 9)


@pytest.mark.parametrize(('grid', 'shift'), [((6, 9), 0), ((5, 7), 1), ((3, 8), 1)])
def test_the_operators_of_compiled_programs(grid, shift):
    """Their gradients are each other; opcheck compares them with autograd and torch.compile."""
    tokens = grid[0] * grid[1]
    sizes = (*grid, 3, shift)
    x = torch.randn(2, tokens, 4, dtype=torch.float64, requires_grad=True)
    cut = cut_operator(x, *sizes)
    torch.testing.assert_close(join_operator(cut, *sizes, 2), x)
    torch.library.opcheck(mask_operator, (x.detach(), *sizes))
    torch.library.opcheck(cut_operator, (x, *sizes))
    torch.library.opcheck(join_operator, (cut.detach().requires_grad_(), *sizes, 2))
    assert torch.autograd.gradcheck(lambda x: cut_operator(x, *sizes), x)
    assert torch.autograd.gradcheck(
        lambda x: join_operator(x, *sizes, 2), cut.detach().requires_grad_()
    )


@pytest.fixture
def made(monkeypatch):
    """The grids and shifts whose windows are made from now on."""
    calls = []
    make = IndexedWindows.__init__

    def recorded(self, x, grid, window_size, shift):
        calls.append((grid, shift))
        make(self, x, grid, window_size, shift)

    monkeypatch.setattr(IndexedWindows, '__init__', recorded)
    cached_windows.cache_clear()
    return calls


SMALL = {'arch': {'embed_dims': 8, 'depths': (1, 1, 4, 2), 'num_heads': (1, 1, 2, 2)}}


def test_windows_are_made_once_per_grid_and_shift(made):
    model = PolaSwin(**SMALL)
    for _ in range(2):
        model(torch.randn(2, 3, 300, 280))[-1].sum().backward()
    # The last stage needs both shifts too: its map is larger than one window.
    assert made == [((19, 18), 0), ((19, 18), 3), ((10, 9), 0), ((10, 9), 3)]


def test_other_batches_grids_and_dtypes_have_other_masks(made):
    for batch, grid in ((2, (5, 7)), (3, (5, 7)), (2, (7, 5)), (2, (5, 7))):
        x = torch.randn(batch, 35, 8)
        assert torch.equal(find_windows(x, grid, 3, 1).mask, Windows(x, grid, 3, 1).mask)
    assert find_windows(x.double(), grid, 3, 1).mask.dtype == torch.float64
    with torch.autocast('cpu', torch.bfloat16):
        assert find_windows(x, grid, 3, 1).mask.dtype == torch.bfloat16


def test_windows_of_few_grids_are_kept(made):
    for side in range(4, 4 + 3 * windows.CACHE_SIZE):
        find_windows(torch.randn(1, side * side, 8), (side, side), 3, 1)
    assert cached_windows.cache_info().currsize == windows.CACHE_SIZE


def test_what_something_records_gets_windows_of_its_own(made):
    """A tensor made in a dispatch mode or a transform of torch.func must not be found later."""
    x = torch.randn(2, 35, 8)
    with Launches():
        find_windows(x, (5, 7), 3, 1).cut(x)
    torch.func.grad(lambda x: find_windows(x, (5, 7), 3, 1).cut(x).sum())(x)
    assert cached_windows.cache_info().currsize == 0


def test_windows_of_inference_mode_serve_training(made):
    model = PolaSwin(**SMALL)
    with torch.inference_mode():
        model(torch.randn(1, 3, 100, 260))
    model(torch.randn(1, 3, 100, 260))[-1].sum().backward()


@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('grid', [(6, 9), (5, 7), (3, 8), (2, 2)])
def test_tokens_are_moved_by_index_as_by_padding_and_rolling(grid, shift):
    x = torch.randn(2, grid[0] * grid[1], 4, dtype=torch.float64, requires_grad=True)
    indexed = IndexedWindows(x, grid, 3, shift)
    plain = Windows(x, grid, 3, shift)
    cut = indexed.cut(x)
    assert torch.equal(cut, plain.cut(x))
    assert torch.equal(indexed.join(cut), x)
    padded = torch.randn_like(cut, requires_grad=True)
    assert torch.equal(indexed.join(padded), plain.join(padded))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(indexed.cut, x)
        assert check(indexed.join, padded)


def test_the_gradients_of_queries_keys_and_values_are_joined_once():
    """By one `cat`, instead of a stack whose parts are copied again."""
    attention = WindowAttention(8, 2, 3, shift=1)
    x = torch.randn(2, 35, 8)
    output = attention(x, find_windows(x, (5, 7), 3, 1))
    with Launches() as launches:
        output.sum().backward()
    assert launches.count('cat') == 1
    assert 'stack' not in launches
