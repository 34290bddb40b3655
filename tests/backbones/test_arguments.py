"""The arguments that backbones share: what is refused, and what they are expanded to."""

import pytest

from mmpola import PolaDeiT, PolaPVT, PolaSwin
from mmpola.backbones.arguments import (
    block_types,
    check_heads,
    check_out_indices,
    token_grid,
)

SMALL = {'embed_dims': 8, 'depths': (1, 2, 2, 1), 'num_heads': (1, 1, 2, 2)}


DEIT = {'embed_dims': 16, 'depth': 4, 'num_heads': 2}
PYRAMID = {**SMALL, 'embed_dims': (8, 8, 8, 8), 'mlp_ratios': (2, 2, 2, 2)}


@pytest.mark.parametrize(
    ('cls', 'name', 'value'),
    [
        (PolaSwin, 'arch', 'huge'),
        (PolaSwin, 'out_indices', (5,)),
        (PolaSwin, 'window_size', 0),
        (PolaSwin, 'backend', 'tritn'),
        (PolaSwin, 'frozen_stages', 5),
        (PolaSwin, 'attn_types', 'LLS'),
        (PolaSwin, 'attn_types', 'LLXS'),
        (PolaSwin, 'attn_types', ('L', 'L', 'LSL', 'S')),
        (PolaSwin, 'arch', {**SMALL, 'depth': 1}),
        (PolaDeiT, 'arch', 'huge'),
        (PolaDeiT, 'out_indices', (4,)),
        (PolaDeiT, 'frozen_stages', 5),
        (PolaDeiT, 'attn_types', 'LS'),
        (PolaDeiT, 'mixing', 'conv'),
        (PolaSwin, 'gate_init', 'one'),
        (PolaDeiT, 'gate_init', None),
        (PolaPVT, 'gate_init', 'opened'),
        (PolaPVT, 'pola_sr_ratios', (8, 4, 2)),
        (PolaPVT, 'pola_sr_ratios', '8421'),
        (PolaPVT, 'softmax_sr_ratios', (8, 4, 2, 0)),
    ],
)
def test_wrong_arguments_are_named(cls, name, value):
    small = {PolaSwin: SMALL, PolaDeiT: DEIT, PolaPVT: PYRAMID}[cls]
    with pytest.raises(ValueError, match=rf'^{name}: expected .*, got '):
        cls(**{'arch': small, name: value})


def last_rate(**arguments):
    return PolaSwin(**arguments).stages[-1].blocks[-1].drop_path.drop_prob


def test_the_drop_path_rate_defaults_to_that_of_the_arch():
    assert last_rate(arch=SMALL) == 0
    assert last_rate(arch='tiny') == pytest.approx(0.2)
    assert last_rate(arch='tiny', drop_path_rate=0.1) == pytest.approx(0.1)


def test_drop_path_rates_count_stages_that_are_not_built():
    rates = [
        block.drop_path.drop_prob
        for block in PolaSwin(SMALL, drop_path_rate=0.5, out_indices=(1,)).stages[1].blocks
    ]
    assert rates == pytest.approx([0.1, 0.2])  # of 6 blocks in the whole network


def test_token_grids_are_rounded_up():
    assert token_grid(224, 16) == (14, 14)
    assert token_grid((33, 47), 4) == (9, 12)


@pytest.mark.parametrize('wrong', [(), (2, 0), (0, 0), (4,), (-1,)])
def test_out_indices_are_ascending_stages(wrong):
    with pytest.raises(ValueError, match=r'^out_indices: ') as raised:
        check_out_indices(wrong, 4)
    assert str(wrong) in str(raised.value)


def test_attention_types_are_spelled_out_per_block():
    assert block_types(('L', 'LS', 'S', 'S'), (1, 2, 2, 1)) == ['L', 'LS', 'SS', 'S']


def test_heads_divide_the_channels_into_a_multiple():
    check_heads([8, 16], [4, 2])
    check_heads([8, 16], [2, 2], multiple=4)
    with pytest.raises(ValueError, match=r'^embed_dims: .*16 channels and 3 heads'):
        check_heads([8, 16], [4, 3])
    with pytest.raises(ValueError, match=r'^num_heads: .*multiple of 2.*8 // 8 = 1'):
        check_heads([8], [8])
    with pytest.raises(ValueError, match=r'^num_heads: .*multiple of 4.*8 // 4 = 2'):
        check_heads([8], [4], multiple=4)


def test_an_ablated_layer_keeps_the_authors_gate():
    with pytest.raises(ValueError, match=r"^gate_init: expected 'authors' with an ablation"):
        PolaDeiT(DEIT, polarity=False, gate_init='open')
