"""Resizing of position tables."""

import torch

from mmpola.layers import resize_bias_table, resize_table


def test_a_table_on_its_own_grid_is_returned_as_it_is():
    table = torch.randn(1, 12, 4)
    assert resize_table(table, (3, 4), (3, 4)) is table
    bias = torch.randn(25, 2)
    assert resize_bias_table(bias, 3) is bias


def test_bilinear_keeps_a_plane():
    """A table that rises linearly over the grid still does, at pixel centres, away from the clamped border."""
    rows = torch.arange(8, dtype=torch.float64).repeat_interleave(8).reshape(1, 64, 1)
    resized = resize_table(rows, (8, 8), (16, 8)).reshape(16, 8)
    expected = (torch.arange(16) + 0.5) / 2 - 0.5
    torch.testing.assert_close(resized[1:-1, 0], expected[1:-1].double())


def test_grids_of_equal_token_count_are_told_apart():
    table = torch.arange(16.0).reshape(1, 16, 1)
    assert not torch.equal(resize_table(table, (4, 4), (2, 8)), table)


def test_bias_tables_grow_with_their_window():
    table = torch.ones(13 * 13, 3)
    torch.testing.assert_close(resize_bias_table(table, 12), torch.ones(23 * 23, 3))
