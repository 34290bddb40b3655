"""Invalid arguments of `polarity_attention`, their messages, and the names of the backends."""

import pytest
import torch

from mmpola.ops import ExpMap, PowerMap, available_backends, polarity_attention, unavailable_backends

Q, K, V = (torch.zeros(2, 5, 3, 4), torch.zeros(2, 7, 3, 4), torch.zeros(2, 7, 3, 4))
POWER = PowerMap(torch.full((3, 4), 2.0))
EXP = ExpMap(torch.ones(3, 8), torch.ones(3, 8))


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        ({'q': Q[0]}, ValueError, 'q: expected [B, N, H, D], got [5, 3, 4]'),
        (
            {'q': Q[..., :3], 'k': K[..., :3], 'v': V[..., :3], 'feature_map': PowerMap(torch.ones(3, 3))},
            ValueError,
            'q: expected an even head dimension D (values split into two streams), got D=3',
        ),
        (
            {'k': torch.zeros(2, 7, 4, 4)},
            ValueError,
            'k: expected [B, M, H, D] with B=2, M=7, H=3, D=4, got [2, 7, 4, 4]',
        ),
        (
            {'v': torch.zeros(2, 7, 3, 6)},
            ValueError,
            'v: expected [B, M, H, D] with B=2, M=7, H=3, D=4, got [2, 7, 3, 6]',
        ),
        ({'v': V[:, :6]}, ValueError, 'v: expected [B, M, H, D] with B=2, M=7, H=3, D=4, got [2, 6, 3, 4]'),
        ({'k': K[:, :0], 'v': V[:, :0]}, ValueError, 'k: expected at least one key (M >= 1), got M=0'),
        (
            {'q': Q.long(), 'k': K.long(), 'v': V.long()},
            TypeError,
            'q: expected float16, bfloat16, float32 or float64, got int64',
        ),
        ({'k': K.half()}, TypeError, 'k: expected the dtype of q, float32, got float16'),
        ({'k': K.to('meta')}, ValueError, 'k: expected the device of q, cpu, got meta'),
        (
            {'feature_map': torch.relu},
            TypeError,
            'feature_map: expected PowerMap or ExpMap, got builtin_function_or_method',
        ),
        (
            {'feature_map': PowerMap(torch.ones(3, 5))},
            ValueError,
            'feature_map.exponent: expected [H, D] with H=3, D=4, got [3, 5]',
        ),
        ({'feature_map': PowerMap(2.0)}, TypeError, 'feature_map.exponent: expected a tensor, got float'),
        ({'feature_map': PowerMap(None)}, TypeError, 'feature_map.exponent: expected a tensor, got NoneType'),
        (
            {'key_position': torch.zeros(5, 3, 4)},
            ValueError,
            'key_position: expected [M, H, D] with M=7, H=3, D=4, got [5, 3, 4]',
        ),
        (
            {'feature_map': EXP, 'k': K[:, :5], 'v': V[:, :5], 'rotary': (torch.zeros(5, 8), torch.zeros(5, 4))},
            ValueError,
            'rotary sin: expected [N, 2D] with N=5, 2D=8, got [5, 4]',
        ),
        (
            {'rotary': (torch.zeros(5, 8), torch.zeros(5, 8))},
            ValueError,
            'rotary: expected feature_map to be an ExpMap, got PowerMap',
        ),
        (
            {'feature_map': EXP, 'rotary': (torch.zeros(5, 8), torch.zeros(5, 8))},
            ValueError,
            'rotary: expected as many keys as queries (one table serves both), got N=5, M=7',
        ),
        ({'backend': 'cuda'}, ValueError, "backend: expected one of ['auto', 'triton', 'torch'], got 'cuda'"),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(arguments, error, message):
    arguments = {'q': Q, 'k': K, 'v': V, 'feature_map': POWER, **arguments}
    with pytest.raises(error) as raised:
        polarity_attention(**arguments)
    assert str(raised.value) == message


def test_every_backend_is_either_available_or_not():
    assert available_backends()[-1] == 'torch'
    assert sorted([*available_backends(), *unavailable_backends()]) == ['torch', 'triton']
