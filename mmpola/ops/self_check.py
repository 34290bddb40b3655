"""The self-check of a backend's kernels on this machine: 'auto' uses them only where they pass.

Once per process, and for each combination of device, operator (with its optional arguments), dtype
and head dimension, the kernels run forward and backward on a small random input and are compared
with the reference. The kernels compiled for the check are the ones used afterwards.
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

from mmpola.ops.comparison import (
    Problem,
    attention_problem,
    mix_and_gate_problem,
    outputs_and_gradients,
    relative_errors,
)
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.numerics import BACKEND_EXCESS

MARGIN = 20
"""Allowed multiple of BACKEND_EXCESS, which was measured without a GPU's exp2 and log2."""

SIZES: dict[tuple[Any, str], dict[str, Any]] = {
    # Enough tokens that several programs share a head up to D = 64, and enough heads that each
    # program loops over several blocks. This also checks pipelining and the sum of partial states
    # with different shifts.
    (attention_problem, 'cuda'): {'batch': 8, 'queries': 1100, 'keys': 1100, 'heads': 2},
    (attention_problem, 'cpu'): {'batch': 1, 'queries': 70, 'keys': 70, 'heads': 2},
    (mix_and_gate_problem, 'cuda'): {'batch': 1, 'grid': (9, 17), 'heads': 2},
    (mix_and_gate_problem, 'cpu'): {'batch': 1, 'grid': (9, 17), 'heads': 2},
}
"""Sizes by device: small, yet several blocks or tiles of tokens, the last one partly filled."""

_results: dict[tuple[Any, ...], str] = {}
"""Outcome of the checks that have run: '', or why the check failed."""

_logged: set[str] = set()


def failures(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    inputs: AttentionInputs | MixAndGateInputs,
) -> list[str]:
    """Return why `run` failed its self-check for such inputs; empty if it passed.

    The first call for a kind of inputs runs the check.
    """
    # A compiler's sizes may be symbols. `index` makes them numbers: kernels differ by these sizes.
    draw: Callable[..., Problem]
    if isinstance(inputs, AttentionInputs):
        draw = attention_problem
        x = inputs.q
        position = inputs.key_position
        _, second = inputs.feature_map.parameters().values()
        variant: dict[str, Any] = {
            'feature_map': type(inputs.feature_map).__name__,
            'has_scale': second is not None,
            'position_dtype': None if position is None else position.dtype,
            'has_rotary': inputs.rotary is not None,
        }
    else:
        draw = mix_and_gate_problem
        x = inputs.attended
        weight = inputs.weight
        variant = {
            'window': (index(weight.shape[2]), index(weight.shape[3])),
            'is_shared': weight.shape[0] == x.shape[3],
            'weight_dtype': weight.dtype,
            'has_bias': inputs.bias is not None,
        }
    dim = index(x.shape[3])
    failure = _failure(run, reference, draw, x.device, x.dtype, dim, **variant)
    if failure:
        return [failure]
    return []


@torch.compiler.assume_constant_result
def log_once(message: str) -> None:
    """Log a warning unless the same message has been logged before."""
    if message not in _logged:
        _logged.add(message)
        logging.getLogger('mmpola').warning(message)


@torch.compiler.assume_constant_result
def too_low_capability(device: torch.device | None, lowest: tuple[int, int]) -> str:
    """Return a device's compute capability, as '7.5', if it is below `lowest`, else ''.

    The result is a string because compilers take a string for a constant, but not a tuple.

    Args:
        device: None for the device with the highest capability on this machine.
        lowest: capability that is needed.
    """
    major, minor = _highest_compute_capability(device)
    if (major, minor) >= lowest:
        return ''
    return f'{major}.{minor}'


@cache  # needed by every call of an operator, and asking the driver is slow
def _highest_compute_capability(device: torch.device | None) -> tuple[int, int]:
    if device is not None:
        return torch.cuda.get_device_capability(device)
    return max(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))


@torch.compiler.assume_constant_result
def _failure(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    draw: Callable[..., Problem],
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    **variant: Any,
) -> str:
    """Return why the check failed, or ''; a constant for a compiler that traces the caller."""
    from mmpola.ops.triton.launch import product_precision

    excess = BACKEND_EXCESS[dtype]
    if dtype == torch.float32 and product_precision(dtype) == 'tf32':
        excess = BACKEND_EXCESS[torch.float16]
    key = (run, device, dtype, excess, dim, *variant.items())
    if key in _results:
        return _results[key]
    if _is_capturing(device):
        return 'a CUDA graph is captured, which allows no self-check; run the model once before'
    try:
        with _isolated(device):
            problem = draw(device, dtype, dim, **SIZES[draw, device.type], **variant)
            found = _compare(run, reference, problem, excess)
    except torch.cuda.OutOfMemoryError:
        # Not stored, since it says nothing about the kernels
        return 'not enough memory for the self-check'
    except Exception as error:  # compilers and drivers may raise anything
        found = f'{type(error).__name__}: {error}'
    if found:
        operator = variant.get('feature_map', 'mix_and_gate')
        dtype_name = str(dtype).removeprefix('torch.')
        found = f'self-check of {operator}, {dtype_name}, D={dim}, on {device} failed: {found}'
    _results[key] = found
    return found


def _is_capturing(device: torch.device) -> bool:
    return device.type == 'cuda' and torch.cuda.is_current_stream_capturing()


@contextmanager
def _isolated(device: torch.device) -> Iterator[None]:
    """Run in plain eager autograd, whatever surrounds the caller: no_grad, autocast, tracing."""
    from torch.utils._python_dispatch import _disable_current_modes

    def unchanged(x: Tensor) -> Tensor:
        return x

    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        # Only the innermost pair of hooks is called: not that of activation checkpointing
        torch.autograd.graph.saved_tensors_hooks(unchanged, unchanged),
    ):
        yield


def _compare(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    problem: Problem,
    excess: tuple[float, float],
) -> str:
    """Return the first result whose error is too much larger than the reference's, or ''."""
    exact = outputs_and_gradients(reference, problem, torch.float64)
    errors = relative_errors(outputs_and_gradients(run, problem), exact)
    reference_errors = relative_errors(outputs_and_gradients(reference, problem), exact)
    output_excess, gradient_excess = excess
    for name, error in errors.items():
        larger_by = output_excess if name == 'output' else gradient_excess
        allowed = reference_errors[name] + MARGIN * larger_by
        if not error <= allowed:  # also true for NaN
            return f'error of the {name} is {error:.1e}, allowed is {allowed:.1e}'
    return ''
