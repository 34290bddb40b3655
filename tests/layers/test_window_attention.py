"""Attention in shifted windows on maps of any size, compared with dense attention between the visible tokens."""

import pytest
import torch

from mmpola.layers import WindowAttention, window_mask


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
    mask = window_mask(grid, 3, shift, 2, x.device)
    torch.testing.assert_close(attention(x, grid, mask), dense_attention(attention, x, grid))


@pytest.mark.parametrize('shift', [0, 1])
@pytest.mark.parametrize('grid', [(6, 9), (7, 8), (3, 3), (2, 11), (1, 1)])
def test_exporters_gather_the_same_windows(grid, shift, monkeypatch):
    attention = WindowAttention(8, 2, 3, shift=shift).double()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    mask = window_mask(grid, 3, shift, 2, x.device)
    expected = attention(x, grid, mask)
    monkeypatch.setattr(torch.compiler, 'is_exporting', lambda: True)
    torch.testing.assert_close(attention(x, grid, mask), expected)


def test_there_is_no_mask_if_every_token_sees_its_whole_window():
    assert window_mask((6, 9), 3, 0, 2, torch.device('cpu')) is None
    assert window_mask((3, 3), 3, 1, 2, torch.device('cpu')) is None
    assert window_mask((6, 9), 3, 1, 2, torch.device('cpu')).shape == (2 * 6, 9, 9)


@pytest.mark.parametrize('size', [1, 2, 3, 7, 12])
def test_the_relative_position_index_numbers_offsets_row_by_row(size):
    """The bias of positions p, q is row (2s-1) (row_p - row_q + s - 1) + column_p - column_q + s - 1 of its table."""
    row, column = (i.flatten() for i in torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij'))
    row_offset, column_offset = row[:, None] - row + size - 1, column[:, None] - column + size - 1
    index = WindowAttention(4, 2, size).relative_position_index
    assert torch.equal(index, row_offset * (2 * size - 1) + column_offset)
