"""Resizing of position tables to other grids and windows."""

import pytest
import torch
import torch.nn.functional as F

from mmpola.layers import resize_bias_table, resize_table


def test_a_table_is_returned_unchanged_if_the_size_stays():
    table = torch.randn(1, 12, 4)
    assert resize_table(table, (3, 4), (3, 4)) is table
    bias = torch.randn(25, 2)
    assert resize_bias_table(bias, 3) is bias


def test_bilinear_interpolation_keeps_a_plane():
    """A table that rises linearly over the grid still does after resizing, except next to the
    border.
    """
    rows = torch.arange(8, dtype=torch.float64).repeat_interleave(8).reshape(1, 64, 1)
    resized = resize_table(rows, (8, 8), (16, 8)).reshape(16, 8)
    expected = (torch.arange(16) + 0.5) / 2 - 0.5
    torch.testing.assert_close(resized[1:-1, 0], expected[1:-1].double())


def test_grids_with_equally_many_tokens_are_distinguished():
    table = torch.arange(16.0).reshape(1, 16, 1)
    assert not torch.equal(resize_table(table, (4, 4), (2, 8)), table)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(('size', 'target'), [(7, 12), (12, 7), (7, 8), (3, 2), (7, 7), (1, 4)])
def test_bias_tables_are_resized_bicubically_and_keep_their_dtype(size, target, dtype):
    """As bicubic interpolation of the map of relative positions, in float32 if the table has half
    precision.
    """
    table = torch.randn((2 * size - 1) ** 2, 3).to(dtype)
    maps = table.T.reshape(1, 3, 2 * size - 1, 2 * size - 1)
    wide = maps if dtype == torch.float64 else maps.float()
    expected = F.interpolate(
        wide, size=(2 * target - 1, 2 * target - 1), mode='bicubic', align_corners=False
    )
    resized = resize_bias_table(table, target)
    assert resized.is_contiguous()
    torch.testing.assert_close(resized, expected[0].flatten(1).T.to(dtype), rtol=0, atol=0)
