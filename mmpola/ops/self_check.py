"""The self-check of a backend's kernels on this machine: 'auto' uses them only where they pass.

Once per process, and for each combination of device, operator (with its optional arguments), dtype and head dimension,
the kernels run forward and backward on a small random input and are compared with the reference. The kernels compiled
for the check are the ones used afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import index
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.feature_map import ExpMap, PowerMap
from mmpola.ops.inputs import AttentionInputs, AttentionTensors, MixAndGateInputs
from mmpola.ops.numerics import BACKEND_EXCESS, EPS

MARGIN = 20
"""Allowed multiple of BACKEND_EXCESS, which was measured without a GPU's exp2 and log2."""
TOKENS = {'cuda': 270, 'cpu': 70}
GRID = (9, 17)
"""Small, yet more than one block or tile of tokens, the last one partly filled."""

_results: dict[tuple[Any, ...], str] = {}
_logged: set[str] = set()


def failures(
    run: Callable[[Any], Tensor], reference: Callable[[Any], Tensor], inputs: AttentionInputs | MixAndGateInputs
) -> list[str]:
    """Return why `run` failed its self-check for such inputs; empty if it passed. The first call runs the check."""
    # `index` turns a compiler's symbolic sizes into numbers, because the result holds for this kernel only.
    variant: tuple[Any, ...]
    if isinstance(inputs, AttentionInputs):
        x, feature_map, position = inputs.q, inputs.feature_map, inputs.key_position
        operator = 'ExpMap' if isinstance(feature_map, ExpMap) else 'PowerMap'
        has_scale = isinstance(feature_map, PowerMap) and feature_map.scale is not None
        variant = has_scale, None if position is None else position.dtype, inputs.rotary is not None
    else:
        x, weight = inputs.attended, inputs.weight
        operator = 'mix_and_gate'
        is_shared = weight.shape[0] == x.shape[3]
        variant = (index(weight.shape[2]), index(weight.shape[3])), is_shared, weight.dtype, inputs.bias is not None
    failure = _failure(run, reference, x.device, x.dtype, index(x.shape[3]), operator, *variant)
    return [failure] if failure else []


@torch.compiler.assume_constant_result
def log_once(message: str) -> None:
    """Log a warning unless the same message has been logged before."""
    if message not in _logged:
        _logged.add(message)
        logging.getLogger('mmpola').warning(message)


@torch.compiler.assume_constant_result
def highest_compute_capability(device: torch.device | None) -> tuple[int, int]:
    """Return the compute capability of a device, or the highest on this machine for None. A constant for compilers."""
    return _highest_compute_capability(device)


@cache  # needed by every call of an operator, and asking the driver is slow
def _highest_compute_capability(device: torch.device | None) -> tuple[int, int]:
    devices = range(torch.cuda.device_count()) if device is None else [device]
    return max(torch.cuda.get_device_capability(i) for i in devices)


@torch.compiler.assume_constant_result
def _failure(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    operator: str,
    *variant: Any,
) -> str:
    """Return why the check failed, or ''. A compiler that traces the caller takes the result as a constant."""
    excess = BACKEND_EXCESS[torch.float16 if _products_are_tf32(dtype) else dtype]
    key = (run, device, dtype, excess, dim, operator, *variant)
    if key not in _results:
        if _is_capturing(device):
            return 'no self-check is possible while a CUDA graph is captured; run the model once before'
        draw = _draw_mix_and_gate if operator == 'mix_and_gate' else _draw_attention
        try:
            with _isolated(device):
                tensors, build = draw(device, dtype, dim, operator, *variant)
                found = _compare(run, reference, tensors, build, excess)
        except torch.cuda.OutOfMemoryError:
            return 'not enough memory for the self-check'  # not stored, since it says nothing about the kernels
        except Exception as error:  # compilers and drivers may raise anything
            found = f'{type(error).__name__}: {error}'
        name = str(dtype).removeprefix('torch.')
        _results[key] = found and f'self-check of {operator}, {name}, D={dim}, on {device} failed: {found}'
    return _results[key]


def _is_capturing(device: torch.device) -> bool:
    return device.type == 'cuda' and torch.cuda.is_current_stream_capturing()


def _products_are_tf32(dtype: torch.dtype) -> bool:
    from mmpola.ops.triton.launch import product_precision

    return dtype == torch.float32 and product_precision(dtype) == 'tf32'


@contextmanager
def _isolated(device: torch.device) -> Iterator[None]:
    """Run in plain eager autograd, whatever surrounds the caller: no_grad, autocast, checkpointing or tracing."""
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),  # only the innermost pair is called
    ):
        yield


def _compare(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    tensors: dict[str, Tensor | None],
    build: Callable[..., Any],
    excess: tuple[float, float],
) -> str:
    """Return the first result whose error against float64 exceeds the same-dtype reference's by too much, or ''."""
    found = _outputs_and_gradients(run, tensors, build)
    expected = _outputs_and_gradients(reference, tensors, build)
    exact = _outputs_and_gradients(reference, tensors, build, torch.float64)
    for name, truth in exact.items():
        errors = [float((x[name].double() - truth).norm() / truth.norm()) for x in (found, expected)]
        allowed = errors[1] + MARGIN * excess[name != 'output']
        if not errors[0] <= allowed:  # also true for NaN
            return f'error of the {name} is {errors[0]:.1e}, allowed is {allowed:.1e}'
    return ''


def _outputs_and_gradients(
    run: Callable[[Any], Tensor],
    tensors: dict[str, Tensor | None],
    build: Callable[..., Any],
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Return the output and the gradient of each tensor, computed in `dtype` or in the tensors' own dtypes."""
    leaves = {
        name: None if x is None else x.detach().to(dtype or x.dtype).requires_grad_() for name, x in tensors.items()
    }
    output = run(build(**leaves))
    wanted = {f'gradient of {name}': x for name, x in leaves.items() if x is not None}
    grad = _normal(output.device, torch.bfloat16, *output.shape, seed=7).to(output.dtype)  # the same in every dtype
    return {
        'output': output.detach(),
        **dict(zip(wanted, torch.autograd.grad(output, [*wanted.values()], grad), strict=True)),
    }


def _normal(device: torch.device, dtype: torch.dtype, *shape: int, seed: int) -> Tensor:
    """Draw standard normal numbers on the CPU with a separate generator, so that the global random state is kept."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device='cpu').to(device, dtype)


def _draw_attention(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    operator: str,
    has_scale: bool,
    position_dtype: torch.dtype | None,
    has_rotary: bool,
) -> tuple[dict[str, Tensor | None], Callable[..., AttentionInputs]]:
    """Draw the tensors of `polarity_attention` and return them with a function that builds its inputs from them."""
    heads, tokens = 2, TOKENS[device.type]
    # Enough samples for each program to loop over several blocks: that checks pipelining and the running shift too.
    batch = torch.cuda.get_device_properties(device).multi_processor_count if device.type == 'cuda' else 1
    tensors: dict[str, Tensor | None] = {
        name: _normal(device, dtype, batch, tokens, heads, dim, seed=seed) for seed, name in enumerate('qkv')
    }
    tensors['key_position'] = None
    if position_dtype is not None:
        tensors['key_position'] = _normal(device, position_dtype, tokens, heads, dim, seed=3)
    size = dim if operator == 'PowerMap' else 2 * dim
    first, second = (_normal(device, torch.float32, heads, size, seed=seed).sigmoid() for seed in (4, 5))
    if operator == 'PowerMap':
        tensors |= {'exponent': 1 + 3 * first, 'scale': 0.5 + second if has_scale else None}
    else:
        tensors |= {'same': first, 'opposite': second}
    rotary = None
    if has_rotary:
        angle = _normal(device, torch.float32, tokens, dim, seed=6).repeat_interleave(2, dim=-1)
        rotary = angle.cos(), angle.sin()
    return tensors, lambda **leaves: AttentionInputs.from_tensors(AttentionTensors(**leaves), rotary, EPS)


def _draw_mix_and_gate(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    operator: str,
    window: tuple[int, int],
    is_shared: bool,
    weight_dtype: torch.dtype,
    has_bias: bool,
) -> tuple[dict[str, Tensor | None], Callable[..., MixAndGateInputs]]:
    """Draw the tensors of `mix_and_gate` and return them with a function that builds its inputs from them."""
    heads, tokens = 2, GRID[0] * GRID[1]
    channels = dim if is_shared else heads * dim
    tensors = {
        'attended': _normal(device, dtype, 1, tokens, heads, dim, seed=0),
        'values': _normal(device, dtype, 1, tokens, heads, dim, seed=1),
        'gate': _normal(device, dtype, 1, tokens, heads * dim, seed=2),
        'weight': _normal(device, weight_dtype, channels, 1, *window, seed=3) / window[1],
        'bias': _normal(device, weight_dtype, channels, seed=4) if has_bias else None,
    }
    return tensors, lambda **leaves: MixAndGateInputs(**leaves, grid=GRID)
