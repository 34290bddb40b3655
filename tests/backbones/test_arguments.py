"""The arguments that backbones share: what is refused, and what they are expanded to."""

import pytest

from mmpola import PolaSwin
from mmpola.backbones.arguments import (
    block_types,
    check_heads,
    check_out_indices,
    drop_path_rates,
    token_grid,
)

SMALL = {'embed_dims': 8, 'depths': (1, 2, 2, 1), 'num_heads': (1, 1, 2, 2)}


def last_rate(**arguments):
    return PolaSwin(**arguments).stages[-1].blocks[-1].drop_path.drop_prob


def test_the_drop_path_rate_defaults_to_that_of_the_arch():
    assert last_rate(arch=SMALL) == 0
    assert last_rate(arch='tiny') == pytest.approx(0.2)
    assert last_rate(arch='tiny', drop_path_rate=0.1) == pytest.approx(0.1)


@pytest.mark.parametrize('last', [0.0, 0.1, 0.55])
@pytest.mark.parametrize('depths', [[1], [2, 2, 2, 2], [1, 3], [3, 8, 27, 3]])
def test_drop_path_rates_rise_linearly_from_0_over_all_stages(last, depths):
    blocks = sum(depths)
    expected = [last * block / max(1, blocks - 1) for block in range(blocks)]
    found = drop_path_rates(last, depths)
    assert [len(stage) for stage in found] == depths
    assert [rate for stage in found for rate in stage] == pytest.approx(expected, rel=1e-6)


def test_drop_path_rates_count_stages_that_are_not_built():
    rates = [
        block.drop_path.drop_prob
        for block in PolaSwin(SMALL, drop_path_rate=0.5, out_indices=(1,)).stages[1].blocks
    ]
    assert rates == pytest.approx([0.1, 0.2])  # of 6 blocks in the whole network


def test_token_grids_are_rounded_up():
    assert token_grid(224, 16) == (14, 14)
    assert token_grid((33, 47), 4) == (9, 12)


def test_stages_are_built_up_to_the_last_output():
    assert PolaSwin(SMALL, out_indices=(0, 2)).num_stages == 3


@pytest.mark.parametrize('wrong', [(), (2, 0), (0, 0), (4,), (-1,)])
def test_out_indices_are_ascending_stages(wrong):
    with pytest.raises(ValueError, match=r'^out_indices: ') as raised:
        check_out_indices(wrong, 4)
    assert str(wrong) in str(raised.value)


def test_attention_types_are_spelled_out_per_block():
    assert block_types(('L', 'LS', 'S', 'S'), (1, 2, 2, 1)) == ['L', 'LS', 'SS', 'S']


@pytest.mark.parametrize('wrong', ['LLXS', ('L', 'LSL', 'S', 'S'), 'LLS'])
def test_attention_types_that_fit_no_block_are_refused(wrong):
    with pytest.raises(ValueError, match=r'^attn_types: '):
        block_types(wrong, (1, 2, 2, 1))


def test_heads_divide_the_channels_into_a_multiple():
    check_heads([8, 16], [4, 2])
    check_heads([8, 16], [2, 2], multiple=4)
    with pytest.raises(ValueError, match=r'^embed_dims: .*16 channels and 3 heads'):
        check_heads([8, 16], [4, 3])
    with pytest.raises(ValueError, match=r'^num_heads: .*multiple of 2.*8 // 8 = 1'):
        check_heads([8], [8])
    with pytest.raises(ValueError, match=r'^num_heads: .*multiple of 4.*8 // 4 = 2'):
        check_heads([8], [4], multiple=4)
