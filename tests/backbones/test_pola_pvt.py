"""Pola-PVT at every size and reduction; tests/backbones/test_golden.py compares it with the
authors' model.
"""

import torch
from torch.testing import assert_close

from mmpola.backbones import PolaPVT
from mmpola.layers.token_maps import reduce_tokens
from tests.helpers.configs import WIDTHS

SMALL = {**WIDTHS, 'depths': (1, 2, 1, 1)}


def test_softmax_blocks_reduce_keys_as_in_pvt():
    model = PolaPVT(SMALL, attn_types='SSSS')
    assert [stage.blocks[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]


def test_a_reduction_that_does_not_divide_the_map_repeats_the_last_row_and_column():
    attn = (
        PolaPVT(SMALL, pola_sr_ratios=(8, 4, 2, 1), pretrain_img_size=64).stages[0].blocks[0].attn
    )
    tokens, grid = reduce_tokens(torch.ones(1, 9 * 12, 8), (9, 12), attn.sr, attn.norm)
    assert grid == (2, 2)
    assert_close(tokens, tokens[:, :1].expand(1, 4, 8))  # a constant map stays constant
