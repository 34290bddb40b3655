"""Compare backends on random inputs: output and gradients, and their errors relative to float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.exp_map import ExpMap
from mmpola.ops.inputs import AttentionInputs, FeatureMap, MixAndGateInputs, Rotary
from mmpola.ops.numerics import default_eps
from mmpola.ops.power_map import PowerMap

MAPS: dict[str, type[FeatureMap]] = {'PowerMap': PowerMap, 'ExpMap': ExpMap}

RANGES = {'exponent': (1, 3), 'scale': (0.5, 1), 'same': (0, 1), 'opposite': (0, 1)}
"""Smallest value and width of the values that are drawn for a feature map's parameters."""


@dataclass(frozen=True)
class Problem:
    """Random arguments of an operator.

    Args:
        tensors: the differentiable ones by name; None for those that are absent.
        build: makes `AttentionInputs` or `MixAndGateInputs` from such tensors.
        output_grad: the gradient of the output, in numbers that bfloat16 holds.
    """

    tensors: dict[str, Tensor | None]
    build: Callable[..., Any]
    output_grad: Tensor


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
        feature_map: of MAPS.
        has_scale: whether a PowerMap has a scale.
        position_dtype: of the key position, None for none.
        has_rotary: whether there are rotary tables, for which `queries` must equal `keys`.
        std: standard deviation of queries, keys and values.
    """
    tensors: dict[str, Tensor | None] = {}
    tensors['q'] = _normal(device, dtype, batch, queries, heads, dim, seed=0, std=std)
    tensors['k'] = _normal(device, dtype, batch, keys, heads, dim, seed=1, std=std)
    tensors['v'] = _normal(device, dtype, batch, keys, heads, dim, seed=2, std=std)
    tensors['key_position'] = None
    if position_dtype is not None:
        tensors['key_position'] = _normal(device, position_dtype, keys, heads, dim, seed=3)
    sizes = {'H': heads, 'D': dim, '2D': 2 * dim}
    for seed, (name, axes) in enumerate(MAPS[feature_map].AXES.items(), start=4):
        low, width = RANGES[name]
        shape = [sizes[axis] for axis in axes]
        numbers = _normal(device, torch.float32, *shape, seed=seed).sigmoid()
        tensors[name] = low + width * numbers
    if 'scale' in tensors and not has_scale:
        tensors['scale'] = None
    rotary: Rotary = None
    if has_rotary:
        angle = _normal(device, torch.float32, keys, dim, seed=6).repeat_interleave(2, dim=-1)
        rotary = (angle.cos(), angle.sin())

    def build(
        q: Tensor, k: Tensor, v: Tensor, key_position: Tensor | None, **parameters: Any
    ) -> AttentionInputs:
        built: Any = MAPS[feature_map]
        return AttentionInputs(q, k, v, built(**parameters), key_position, rotary, default_eps())

    output_grad = _normal(device, torch.bfloat16, batch, queries, heads, dim, seed=7).to(dtype)
    return Problem(tensors, build, output_grad)


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
    height, width = window
    channels = dim if is_shared else heads * dim
    weight = _normal(device, weight_dtype, channels, 1, height, width, seed=3)
    bias = None
    if has_bias:
        bias = _normal(device, weight_dtype, channels, seed=4)
    tensors = {
        'attended': _normal(device, dtype, batch, tokens, heads, dim, seed=0),
        'values': _normal(device, dtype, batch, tokens, heads, dim, seed=1),
        'gate': _normal(device, dtype, batch, tokens, heads * dim, seed=2),
        'weight': weight / width,
        'bias': bias,
    }

    def build(**drawn: Any) -> MixAndGateInputs:
        return MixAndGateInputs(**drawn, grid=grid)

    output_grad = _normal(device, torch.bfloat16, batch, tokens, heads * dim, seed=7).to(dtype)
    return Problem(tensors, build, output_grad)


def outputs_and_gradients(
    run: Callable[[Any], Tensor], problem: Problem, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return output and gradients, computed in `dtype` or in the dtypes of the tensors."""
    arguments: dict[str, Tensor | None] = {}
    leaves: dict[str, Tensor] = {}
    for name, x in problem.tensors.items():
        arguments[name] = None
        if x is not None:
            leaves[name] = x.detach().to(dtype or x.dtype).requires_grad_()
            arguments[name] = leaves[name]
    output = run(problem.build(**arguments))
    output_grad = problem.output_grad.to(output.dtype)
    gradients = torch.autograd.grad(output, list(leaves.values()), output_grad)
    results = {'output': output.detach()}
    for name, gradient in zip(leaves, gradients, strict=True):
        results[f'gradient of {name}'] = gradient
    return results


def relative_errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative error of each tensor; NaN if one has NaN or the exact one is 0."""
    errors = {}
    for name, x in exact.items():
        error = (found[name].double() - x).norm() / x.norm()
        errors[name] = float(error)
    return errors


def _normal(
    device: torch.device, dtype: torch.dtype, *shape: int, seed: int, std: float = 1.0
) -> Tensor:
    """Draw normal numbers on the device; the global generator stays as it is."""
    generator = torch.Generator(device).manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
    return (std * numbers).to(dtype)
