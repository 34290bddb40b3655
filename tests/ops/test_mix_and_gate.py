"""`mix_and_gate` (E14): the reference compared with loops, its gradients and its errors."""

import re
import shutil
from math import prod

import pytest
import torch
import torch.nn.functional as F

from mmpola.ops import mix_and_gate
from mmpola.ops.reference import convolve_tokens
from tests.helpers.models import Launches

GRID = (3, 4)
ATTENDED, VALUES = torch.randn(
    2, 1, 12, 2, 4, generator=torch.Generator().manual_seed(0)
)  # B=1, N=12, H=2, D=4
GATE = torch.ones(1, 12, 8)
WEIGHT = torch.ones(4, 1, 3, 3)


def by_loops(attended, values, gate, weight, bias, grid):
    """Compute E14 as printed, one output element at a time; a sequence is a map of one row."""
    batch, _, heads, dim = values.shape
    rows, columns = grid if len(grid) == 2 else (1, *grid)
    height, width = weight.shape[2:] if len(grid) == 2 else (1, *weight.shape[2:])
    weight = weight.view(len(weight), height, width)
    output = torch.empty_like(gate)
    for b in range(batch):
        for n in range(rows * columns):
            for c in range(heads * dim):
                kernel = c if len(weight) == heads * dim else c % dim
                total = attended[b, n, c // dim, c % dim] + (0 if bias is None else bias[kernel])
                for i in range(height):
                    for j in range(width):
                        row, column = n // columns + i - height // 2, n % columns + j - width // 2
                        if 0 <= row < rows and 0 <= column < columns:
                            value = values[b, row * columns + column, c // dim, c % dim]
                            total += weight[kernel, i, j] * value
                output[b, n, c] = total * gate[b, n, c]
    return output


def draw(grid, heads, dim, side, shared=True, bias=True, dtype=torch.float64):
    tokens, channels = prod(grid), heads * dim
    kernels = dim if shared else channels
    packed = torch.randn(2, tokens, 3, heads, dim, dtype=dtype)
    attended, values, gate = packed.unbind(2)  # views of one projection, as in the layers
    weight = torch.randn(kernels, 1, *[side] * len(grid), dtype=dtype)
    return [
        attended,
        values,
        gate.flatten(2),
        weight,
        torch.randn(kernels, dtype=dtype) if bias else None,
    ]


@pytest.mark.parametrize('shared', [True, False])
@pytest.mark.parametrize(
    ('grid', 'side', 'bias'),
    [((4, 3), 3, True), ((1, 1), 3, False), ((1, 6), 5, True), ((7,), 5, True), ((2,), 7, False)],
)
def test_reference_is_the_equation(grid, side, bias, shared):
    tensors = draw(grid, 2, 3, side, shared, bias)
    torch.testing.assert_close(mix_and_gate(*tensors, grid), by_loops(*tensors, grid))


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize(('grid', 'batch'), [((0, 3), 2), ((0, 0), 2), ((0,), 2), ((2, 3), 0)])
def test_empty_inputs_give_empty_outputs_and_gradients_of_zero(grid, batch, bias):
    """As `polarity_attention` does without queries."""
    tensors = draw(grid, 2, 4, 3, bias=bias)
    leaves = [None if x is None else x.detach()[:batch].requires_grad_() for x in tensors[:3]]
    leaves += [None if x is None else x.requires_grad_() for x in tensors[3:]]
    output = mix_and_gate(*leaves, grid)
    output.sum().backward()
    assert output.shape == (batch, prod(grid), 8)
    assert all(x is None or not x.grad.any() for x in leaves)


def test_equal_kernels_per_channel_are_one_shared_kernel():
    attended, values, gate, weight, bias = draw(GRID, 3, 4, 5)
    found = mix_and_gate(attended, values, gate, weight.repeat(3, 1, 1, 1), bias.repeat(3), GRID)
    assert torch.equal(found, mix_and_gate(attended, values, gate, weight, bias, GRID))


def test_a_delta_kernel_adds_the_values():
    attended, values, gate, _, _ = draw(GRID, 2, 4, 3)
    delta = torch.zeros(4, 1, 3, 3, dtype=torch.float64)
    delta[:, :, 1, 1] = 1
    expected = (attended + values).flatten(2) * gate
    torch.testing.assert_close(
        mix_and_gate(attended, values, gate, delta, None, GRID), expected, rtol=0, atol=0
    )


@pytest.mark.parametrize('grid', [(2, 3), (5,)])
@pytest.mark.parametrize('shared', [True, False])
def test_gradcheck(shared, grid):
    leaves = [x.detach().clone().requires_grad_() for x in draw(grid, 2, 2, 3, shared)]
    assert torch.autograd.gradcheck(lambda *x: mix_and_gate(*x, grid), leaves)
    assert torch.autograd.gradgradcheck(lambda *x: mix_and_gate(*x, grid), leaves)


def test_a_kernel_with_another_dtype_is_cast():
    """Under autocast the tokens are half and the layer's parameters are not."""
    attended, values, gate, weight, bias = draw(GRID, 2, 4, 3, dtype=torch.float32)
    tokens = [x.bfloat16() for x in (attended, values, gate)]
    output = mix_and_gate(*tokens, weight.requires_grad_(), bias, GRID)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, mix_and_gate(*tokens, weight.bfloat16(), bias.bfloat16(), GRID))
    output.sum().backward()
    assert weight.grad.dtype == torch.float32


def test_convolution_of_tokens_copies_no_values():
    """Tokens by channels are a channels-last map, and so is the result: that makes it fast on a
    CPU.
    """
    x = torch.randn(2, 12, 8)
    output = convolve_tokens(x, torch.randn(4, 1, 3, 3), None, GRID)
    assert output.stride() == x.stride()


def test_a_kernel_for_every_channel_is_not_copied():
    x, conv = torch.randn(2, 20, 8), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
    with Launches() as launches:
        convolve_tokens(x, conv.weight, conv.bias, (4, 5))
    assert launches == ['convolution']


@pytest.mark.slow
@pytest.mark.skipif(shutil.which('g++') is None, reason='Inductor needs a compiler of C++')
def test_inductor_compiles_it_for_maps_of_any_size():
    """With kernels and a bias that heads share, and tokens that are a slice of a projection."""
    projection, kernel, bias = torch.randn(24, 8), torch.randn(4, 1, 3, 3), torch.randn(4)

    def run(x):
        tokens = F.linear(x.flatten(2).transpose(1, 2), projection)
        attended, values, gate = tokens.chunk(3, dim=-1)
        heads = (attended.unflatten(-1, (2, -1)), values.unflatten(-1, (2, -1)))
        return mix_and_gate(*heads, gate, kernel, bias, (x.shape[2], x.shape[3]))

    torch.compiler.reset()
    compiled = torch.compile(run, dynamic=True, fullgraph=True)
    for size in [(6, 5), (8, 9)]:
        x = torch.randn(2, 8, *size)
        torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        ({'gate': None}, TypeError, 'gate: expected a tensor'),
        (
            {'attended': ATTENDED.long()},
            TypeError,
            'attended: expected float16, bfloat16, float32 or float64',
        ),
        (
            {'weight': WEIGHT.int()},
            TypeError,
            'weight: expected float16, bfloat16, float32 or float64',
        ),
        ({'values': VALUES.half()}, TypeError, 'values: expected the dtype of attended, float32'),
        ({'gate': GATE.to('meta')}, ValueError, 'gate: expected the device of attended, cpu'),
        ({'attended': ATTENDED[0]}, ValueError, 'attended: expected [B, N, H, D]'),
        (
            {'values': VALUES[:, :9]},
            ValueError,
            'values: expected [B, N, H, D] with B=1, N=12, H=2, D=4',
        ),
        ({'gate': GATE[..., :4]}, ValueError, 'gate: expected [B, N, C] with B=1, N=12, C=8'),
        *(
            (
                {'weight': weight},
                ValueError,
                'weight: expected [D, 1, k, k] or [C, 1, k, k] with D=4, C=8 and k odd',
            )
            for weight in (
                WEIGHT[:3],
                WEIGHT[..., :2],
                torch.ones(4, 1, 2, 2),
                torch.ones(4, 2, 3, 3),
            )
        ),
        ({'bias': torch.ones(8)}, ValueError, 'bias: expected [4] like weight'),
        ({'grid': (3, 5)}, ValueError, 'grid: expected (N,) or (h, w) with h * w = N = 12'),
        ({'grid': (-3, -4)}, ValueError, 'grid: expected (N,) or (h, w) with h * w = N = 12'),
        ({'grid': (3.0, 4.0)}, ValueError, 'grid: expected (N,) or (h, w) with h * w = N = 12'),
        ({'grid': 12}, ValueError, 'grid: expected (N,) or (h, w) with h * w = N = 12, got 12'),
        *(
            (
                {'grid': (12,), 'weight': weight},
                ValueError,
                'weight: expected [D, 1, k] or [C, 1, k] with D=4, C=8 and k odd',
            )
            for weight in (WEIGHT, torch.ones(4, 1, 2))
        ),
        ({'backend': 'cuda'}, ValueError, "backend: expected one of ['auto', 'triton', 'torch']"),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(arguments, error, message):
    arguments = {
        'attended': ATTENDED,
        'values': VALUES,
        'gate': GATE,
        'weight': WEIGHT,
        'bias': None,
        'grid': GRID,
        **arguments,
    }
    with pytest.raises(error, match=re.escape(message)):
        mix_and_gate(**arguments)


def test_autocast_changes_nothing():
    tensors = [x.float() for x in (ATTENDED, VALUES, GATE, WEIGHT)]
    expected = mix_and_gate(*tensors, None, GRID)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(mix_and_gate(*tensors, None, GRID), expected)
