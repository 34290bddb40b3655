"""Pola-PVT at every size and reduction; tests/backbones/test_golden.py compares it with the
authors' model.
"""

import torch
from torch.testing import assert_close

from mmpola.backbones import PolaPVT
from mmpola.layers.token_maps import reduce_tokens
from tests.helpers.configs import WIDTHS

SMALL = {**WIDTHS, 'depths': (1, 2, 1, 1)}


def randomised(model: PolaPVT) -> PolaPVT:
    """Add random numbers to every parameter: tables, powers and scales start at 0, which would hide
    errors.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def test_softmax_blocks_reduce_keys_as_in_pvt():
    model = PolaPVT(SMALL, attn_types='SSSS')
    assert [stage.blocks[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]


def test_resized_tables_keep_their_place_in_the_map():
    model = PolaPVT(SMALL, pretrain_img_size=64, out_indices=(0,)).eval()
    with torch.no_grad():
        model.stages[0].pos_embed.zero_()
        model.stages[0].pos_embed.unflatten(1, (16, 16))[:, :8].fill_(1.0)  # the upper half
    black = torch.zeros(1, 3, 128, 128)
    with torch.no_grad():
        embedded = model.stem(black)
        model.stages[0].blocks = torch.nn.ModuleList()
        added = model(black)[0].permute(0, 2, 3, 1) - embedded
    assert embedded.shape[:3] == (1, 32, 32)
    rows = added.mean(dim=(0, 2, 3))
    assert_close(rows[:15], torch.ones(15))
    assert_close(rows[17:], torch.zeros(15))


def test_every_token_is_read_if_the_reduction_does_not_divide_the_map():
    model = (
        randomised(PolaPVT(SMALL, pola_sr_ratios=(8, 4, 2, 1), pretrain_img_size=64))
        .double()
        .eval()
    )
    tokens = images(1, 9 * 12, 8, dtype=torch.float64).requires_grad_()
    model.stages[0].blocks[0].attn(tokens, (9, 12))[
        :, 0
    ].sum().backward()  # one query attends to all keys
    assert (tokens.grad.abs().sum(dim=-1) > 0).all()


def test_a_reduction_that_does_not_divide_the_map_repeats_the_last_row_and_column():
    attn = (
        PolaPVT(SMALL, pola_sr_ratios=(8, 4, 2, 1), pretrain_img_size=64).stages[0].blocks[0].attn
    )
    tokens, grid = reduce_tokens(torch.ones(1, 9 * 12, 8), (9, 12), attn.sr, attn.norm)
    assert grid == (2, 2)
    assert_close(tokens, tokens[:, :1].expand(1, 4, 8))  # a constant map stays constant
