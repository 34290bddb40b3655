"""Compare backends on random inputs: output and gradients, and their errors relative to float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.features import ExpMap, PowerMap
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import EPS


@dataclass(frozen=True)
class Problem:
    """Random arguments of an operator.

    Args:
        tensors: the differentiable ones by name; None for those that are absent.
        build: makes `AttentionInputs` or `MixAndGateInputs` from such tensors.
    """

    tensors: dict[str, Tensor | None]
    build: Callable[..., Any]


def attention_problem(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    *,
    feature_map: str,
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    has_scale: bool = True,
    position_dtype: torch.dtype | None = torch.float32,
    has_rotary: bool = False,
    std: float = 1.0,
) -> Problem:
    """Draw the tensors of `polarity_attention`; always the same ones for the same arguments.

    Args:
        feature_map: 'PowerMap' or 'ExpMap'.
        has_scale: whether a PowerMap has a scale.
        position_dtype: of the key position, None for none.
        has_rotary: whether there are rotary tables, for which `queries` must equal `keys`.
        std: standard deviation of queries, keys and values.
    """
    tensors: dict[str, Tensor | None] = {
        name: _normal(device, dtype, batch, tokens, heads, dim, seed=seed, std=std)
        for seed, (name, tokens) in enumerate((('q', queries), ('k', keys), ('v', keys)))
    }
    tensors['key_position'] = None
    if position_dtype is not None:
        tensors['key_position'] = _normal(device, position_dtype, keys, heads, dim, seed=3)
    size = dim if feature_map == 'PowerMap' else 2 * dim
    first, second = (
        _normal(device, torch.float32, heads, size, seed=seed).sigmoid() for seed in (4, 5)
    )
    if feature_map == 'PowerMap':
        tensors |= {'exponent': 1 + 3 * first, 'scale': 0.5 + second if has_scale else None}
    else:
        tensors |= {'same': first, 'opposite': second}
    rotary = None
    if has_rotary:
        angle = _normal(device, torch.float32, keys, dim, seed=6).repeat_interleave(2, dim=-1)
        rotary = angle.cos(), angle.sin()

    def build(
        q: Tensor, k: Tensor, v: Tensor, key_position: Tensor | None, **parameters: Any
    ) -> AttentionInputs:
        make = PowerMap if feature_map == 'PowerMap' else ExpMap
        return AttentionInputs(q, k, v, make(**parameters), key_position, rotary, EPS)

    return Problem(tensors, build)


def mix_and_gate_problem(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    *,
    batch: int,
    grid: tuple[int, int],
    heads: int,
    window: tuple[int, int],
    is_shared: bool,
    weight_dtype: torch.dtype = torch.float32,
    has_bias: bool = True,
) -> Problem:
    """Draw the tensors of `mix_and_gate`; always the same ones for the same arguments.

    Args:
        window: height and width of the convolution kernel.
        is_shared: whether all heads share it.
        weight_dtype: of the convolution kernel and its bias.
    """
    tokens = grid[0] * grid[1]
    channels = dim if is_shared else heads * dim
    tensors = {
        'attended': _normal(device, dtype, batch, tokens, heads, dim, seed=0),
        'values': _normal(device, dtype, batch, tokens, heads, dim, seed=1),
        'gate': _normal(device, dtype, batch, tokens, heads * dim, seed=2),
        'weight': _normal(device, weight_dtype, channels, 1, *window, seed=3) / window[1],
        'bias': _normal(device, weight_dtype, channels, seed=4) if has_bias else None,
    }
    return Problem(tensors, lambda **leaves: MixAndGateInputs(**leaves, grid=grid))


def outputs_and_gradients(
    run: Callable[[Any], Tensor], problem: Problem, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return output and gradients, computed in `dtype` or in the dtypes of the tensors."""
    leaves = {
        name: None if x is None else x.detach().to(dtype or x.dtype).requires_grad_()
        for name, x in problem.tensors.items()
    }
    output = run(problem.build(**leaves))
    wanted = {f'gradient of {name}': x for name, x in leaves.items() if x is not None}
    grad = _normal(output.device, torch.bfloat16, *output.shape, seed=7).to(
        output.dtype
    )  # the same in every dtype
    return {
        'output': output.detach(),
        **dict(zip(wanted, torch.autograd.grad(output, [*wanted.values()], grad), strict=True)),
    }


def relative_errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative error of each tensor; NaN if one has NaN or the exact one is 0."""
    return {name: float((found[name].double() - x).norm() / x.norm()) for name, x in exact.items()}


def _normal(
    device: torch.device, dtype: torch.dtype, *shape: int, seed: int, std: float = 1.0
) -> Tensor:
    """Draw normal numbers on the CPU with a generator of its own: the global one stays as it is."""
    generator = torch.Generator().manual_seed(seed)
    return (std * torch.randn(shape, generator=generator, dtype=torch.float32, device='cpu')).to(
        device, dtype
    )
