"""Attention in shifted windows on maps of any size, compared with dense attention between the visible tokens."""

import pytest
import torch

from mmpola.layers import WindowAttention, window_mask
from mmpola.layers.windows import cut_operator, join_operator, mask_operator


def visible_pairs(grid, size, shift):
    """[N, N] bool: whether two tokens are in the same (shifted) window of the unpadded map."""
    shifts = [shift if side > size else 0 for side in grid]
    cell = torch.tensor(
        [
            [(row + size - shifts[0]) // size * 1000 + (column + size - shifts[1]) // size for column in range(grid[1])]
            for row in range(grid[0])
        ]
    ).flatten()
    return cell[:, None] == cell[None, :]


def dense_attention(attention, x, grid):
    """Use the same weights in one [N, N] softmax over all pairs of tokens, with the invisible pairs masked out."""
    size, heads, (rows, columns) = attention.window_size, attention.num_heads, grid
    q, k, v = attention.qkv(x).unflatten(-1, (3, heads, -1)).unbind(2)
    row, column = (i.flatten() for i in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing='ij'))
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
    mask = window_mask(x, grid, 3, shift)
    torch.testing.assert_close(attention(x, grid, mask), dense_attention(attention, x, grid))


@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('grid', [(6, 9), (7, 8), (3, 3), (2, 11), (1, 1)])
def test_exporters_gather_the_same_windows(grid, shift, monkeypatch):
    attention = WindowAttention(8, 2, 3, shift=shift).double()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    mask = window_mask(x, grid, 3, shift)
    expected = attention(x, grid, mask)
    monkeypatch.setattr(torch.compiler, '_is_exporting_flag', True)
    torch.testing.assert_close(attention(x, grid, mask), expected)


def test_there_is_no_mask_if_every_token_sees_its_whole_window():
    assert window_mask(torch.empty(2, 54, 8), (6, 9), 3, 0) is None
    assert window_mask(torch.empty(2, 9, 8), (3, 3), 3, 1) is None
    assert window_mask(torch.empty(2, 54, 8), (6, 9), 3, 1).shape == (2 * 6, 9, 9)


@pytest.mark.parametrize(('grid', 'shifts'), [((6, 9), (0, 0)), ((5, 7), (1, 1)), ((3, 8), (0, 1))])
def test_the_operators_of_compiled_programs(grid, shifts):
    """Their gradients are each other; opcheck compares them with autograd's rules and with torch.compile."""
    tokens, sizes = grid[0] * grid[1], (*grid, 3, *shifts)
    x = torch.randn(2, tokens, 4, dtype=torch.float64, requires_grad=True)
    windows = cut_operator(x, *sizes)
    torch.testing.assert_close(join_operator(windows, *sizes, 2), x)
    torch.library.opcheck(mask_operator, (x.detach(), *sizes))
    torch.library.opcheck(cut_operator, (x, *sizes))
    torch.library.opcheck(join_operator, (windows.detach().requires_grad_(), *sizes, 2))
    assert torch.autograd.gradcheck(lambda x: cut_operator(x, *sizes), x)
    assert torch.autograd.gradcheck(lambda x: join_operator(x, *sizes, 2), windows.detach().requires_grad_())


@pytest.mark.parametrize('size', [1, 2, 3, 7, 12])
def test_the_relative_position_index_numbers_offsets_row_by_row(size):
    """The bias of positions p, q is row (2s-1) (row_p - row_q + s - 1) + column_p - column_q + s - 1 of its table."""
    row, column = (i.flatten() for i in torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij'))
    row_offset, column_offset = row[:, None] - row + size - 1, column[:, None] - column + size - 1
    index = WindowAttention(4, 2, size).relative_position_index
    assert torch.equal(index, row_offset * (2 * size - 1) + column_offset)
