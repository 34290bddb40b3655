"""Wrong arguments of Pola-Swin; tests/backbones/test_golden.py compares it with the authors'
model.
"""

import re

import pytest

from mmpola.backbones import PolaSwin, pola_swin


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'arch': 'huge'}, f'arch: expected one of {list(pola_swin.ARCHS)} or a dict'),
        ({'out_indices': (5,)}, 'out_indices: expected ascending stages out of [0, 1, 2, 3]'),
        ({'window_size': 0}, 'window_size: expected at least 1'),
        ({'backend': 'tritn'}, "backend: expected one of ['auto', 'triton', 'torch']"),
        ({'frozen_stages': 5}, 'frozen_stages: expected -1 ... 4'),
        ({'attn_types': 'LLS'}, 'attn_types: expected 4 entries, one per stage'),
        (
            {'attn_types': ('L', 'L', 'LS', 'S')},
            "attn_types: expected one letter of 'LS' or a string of 6 of them per stage",
        ),
        (
            {'arch': {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (3, 2, 4, 8)}},
            'embed_dims: expected multiples of num_heads',
        ),
        (
            {'arch': {'embed_dims': 6, 'depths': (1, 1, 1, 1), 'num_heads': (2, 2, 4, 8)}},
            'num_heads: expected a head dimension that is a multiple of 2',
        ),
        (
            {'arch': {'embed_dim': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)}},
            "arch: expected a dict with the keys ['embed_dims', 'depths', 'num_heads']",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PolaSwin(**arguments)
