"""Invalid arguments of `polarity_attention`, their messages, and the names of the backends."""

import re

import pytest
import torch

from mmpola.ops import (
    ExpMap,
    PowerMap,
    api,
    available_backends,
    polarity_attention,
    unavailable_backends,
)
from mmpola.ops.api import Backend

Q, K, V = (torch.zeros(2, 5, 3, 4), torch.zeros(2, 7, 3, 4), torch.zeros(2, 7, 3, 4))
POWER = PowerMap(torch.full((3, 4), 2.0))
EXP = ExpMap(torch.ones(3, 8), torch.ones(3, 8))


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        ({'q': Q[0]}, ValueError, 'q: expected [B, N, H, D]'),
        (
            {
                'q': Q[..., :3],
                'k': K[..., :3],
                'v': V[..., :3],
                'feature_map': PowerMap(torch.ones(3, 3)),
            },
            ValueError,
            'q: expected an even head dimension D (values split into two streams)',
        ),
        (
            {
                'q': Q[..., :0],
                'k': K[..., :0],
                'v': V[..., :0],
                'feature_map': PowerMap(torch.ones(3, 0)),
            },
            ValueError,
            'q: expected an even head dimension D (values split into two streams)',
        ),
        (
            {'k': torch.zeros(2, 7, 4, 4)},
            ValueError,
            'k: expected [B, M, H, D] with B=2, M=7, H=3, D=4',
        ),
        (
            {'v': torch.zeros(2, 7, 3, 6)},
            ValueError,
            'v: expected [B, M, H, D] with B=2, M=7, H=3, D=4',
        ),
        ({'v': V[:, :6]}, ValueError, 'v: expected [B, M, H, D] with B=2, M=7, H=3, D=4'),
        ({'k': K[:, :0], 'v': V[:, :0]}, ValueError, 'k: expected at least one key (M >= 1)'),
        (
            {'q': Q.long(), 'k': K.long(), 'v': V.long()},
            TypeError,
            'q: expected float16, bfloat16, float32 or float64',
        ),
        ({'k': K.half()}, TypeError, 'k: expected the dtype of q, float32'),
        ({'k': K.to('meta')}, ValueError, 'k: expected the device of q, cpu'),
        ({'feature_map': torch.relu}, TypeError, 'feature_map: expected a FeatureMap'),
        (
            {'feature_map': PowerMap(torch.ones(3, 5))},
            ValueError,
            'feature_map.exponent: expected [H, D] with H=3, D=4',
        ),
        ({'feature_map': PowerMap(2.0)}, TypeError, 'feature_map.exponent: expected a tensor'),
        ({'feature_map': PowerMap(None)}, TypeError, 'feature_map.exponent: expected a tensor'),
        (
            {'key_position': torch.zeros(5, 3, 4)},
            ValueError,
            'key_position: expected [M, H, D] with M=7, H=3, D=4',
        ),
        (
            {
                'feature_map': EXP,
                'k': K[:, :5],
                'v': V[:, :5],
                'rotary': (torch.zeros(5, 8), torch.zeros(5, 4)),
            },
            ValueError,
            'rotary sin: expected [N, 2D] with N=5, 2D=8',
        ),
        (
            {'rotary': (torch.zeros(5, 8), torch.zeros(5, 8))},
            ValueError,
            'rotary: expected a feature_map that takes it',
        ),
        (
            {'feature_map': EXP, 'rotary': (torch.zeros(5, 8), torch.zeros(5, 8))},
            ValueError,
            'rotary: expected as many keys as queries (one table serves both)',
        ),
        (
            {
                'feature_map': EXP,
                'k': K[:, :3],
                'v': V[:, :3],
                'rotary': (torch.zeros(5, 8), torch.zeros(5, 8)),
            },
            ValueError,
            'rotary: expected as many keys as queries (one table serves both)',
        ),
        ({'backend': 'cuda'}, ValueError, "backend: expected one of ['auto', 'triton', 'torch']"),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(arguments, error, message):
    arguments = {'q': Q, 'k': K, 'v': V, 'feature_map': POWER, **arguments}
    with pytest.raises(error, match=re.escape(message)):
        polarity_attention(**arguments)


def test_a_named_backend_that_cannot_serve_the_inputs_says_every_reason(monkeypatch):
    refusing = Backend(
        'torch', list, lambda inputs: ['D is odd', 'H is 3'], *[lambda inputs: inputs.q] * 2
    )
    monkeypatch.setattr(api, 'BACKENDS', (refusing,))
    with pytest.raises(RuntimeError, match=r"^backend 'torch' cannot run: D is odd; H is 3$"):
        polarity_attention(Q, K, V, POWER, backend='torch')


def test_every_backend_is_either_available_or_not():
    assert available_backends()[-1] == 'torch'
    assert sorted([*available_backends(), *unavailable_backends()]) == ['torch', 'triton']
