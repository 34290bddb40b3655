"""The specification of stages from a backbone's arguments: which are built, their blocks, drop path rates and grids."""

import re

import pytest

from mmpola.backbones.pyramid import (
    StageSpec,
    block_types,
    drop_path_rates,
    stage_specs,
    stages_to_build,
    token_grid,
)

SETTINGS = {
    'embed_dims': (8, 16, 24, 32),
    'depths': (1, 2, 2, 1),
    'num_heads': (1, 2, 3, 4),
    'mlp_ratios': (8, 4, 2, 1),
}


def test_a_stage_spec_has_everything_that_its_stage_is_built_from():
    first, second = stage_specs(SETTINGS, ('L', 'LS', 'S', 'S'), (1,), (64, 100), 0.5)
    assert first == StageSpec(
        index=0, dim=8, num_heads=1, mlp_ratio=8, grid=(16, 25), blocks=[('L', 0.0)]
    )
    assert (second.index, second.dim, second.num_heads, second.mlp_ratio, second.grid) == (
        1,
        16,
        2,
        4,
        (8, 13),
    )
    assert second.blocks == [
        ('L', pytest.approx(0.1)),
        ('S', pytest.approx(0.2)),
    ]  # of 6 blocks in the whole network


@pytest.mark.parametrize(
    ('given', 'own', 'last'),
    [(None, {}, 0.0), (None, {'drop_path_rate': 0.3}, 0.3), (0.2, {'drop_path_rate': 0.3}, 0.2)],
)
def test_the_drop_path_rate_defaults_to_that_of_the_arch(given, own, last):
    specs = stage_specs(SETTINGS | own, 'LLLL', (3,), 64, given)
    assert specs[-1].blocks[-1][1] == pytest.approx(last)


@pytest.mark.parametrize('last', [0.0, 0.1, 0.55])
@pytest.mark.parametrize('blocks', [1, 2, 8, 42])
def test_drop_path_rates_rise_linearly_from_0(last, blocks):
    expected = [last * block / max(1, blocks - 1) for block in range(blocks)]
    assert drop_path_rates(last, blocks) == pytest.approx(expected, rel=1e-6)


def test_token_grids_are_rounded_up():
    assert token_grid(224, 16) == (14, 14)
    assert token_grid((33, 47), 4) == (9, 12)


def test_stages_are_built_up_to_the_last_output():
    assert stages_to_build((0, 2), 4) == 3
    for wrong in ((), (2, 0), (0, 0), (4,), (-1,)):
        with pytest.raises(
            ValueError,
            match=re.escape('out_indices: expected ascending stages out of [0, 1, 2, 3]'),
        ):
            stages_to_build(wrong, 4)


def test_attention_types_are_spelled_out_per_block():
    assert block_types(('L', 'LS', 'S', 'S'), (1, 2, 2, 1)) == ['L', 'LS', 'SS', 'S']
    with pytest.raises(
        ValueError,
        match="attn_types: expected one letter of 'LS' or a string of 2 of them per stage",
    ):
        block_types('LLXS', (1, 2, 2, 1))
