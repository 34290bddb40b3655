"""Whether kernels prove themselves on the machine at hand: 'auto' takes them only where they do.

The first time a device, an operator, a dtype and a head dimension meet, the kernels run forward and backward on a small
random input and are compared with the reference. Once per process and combination; the compiled kernels are reused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch import Tensor

from mmpola.ops.epilogue_inputs import EpilogueInputs
from mmpola.ops.feature_map import ExpMap, PowerMap
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.numerics import BACKEND_EXCESS, EPS

MARGIN = 20
"""Times BACKEND_EXCESS: a wrong kernel errs by far more, and no GPU's exp2 and log2 were in that measurement."""
TOKENS = {'cuda': 270, 'cpu': 70}
GRID = (9, 17)
"""Small, and more than one block or tile of tokens, the last one partly filled."""

_verdicts: dict[tuple[Any, ...], str] = {}
_told: set[str] = set()


def objections(
    run: Callable[[Any], Tensor], reference: Callable[[Any], Tensor], inputs: AttentionInputs | EpilogueInputs
) -> list[str]:
    """Why 'auto' may not take `run` for such inputs; empty where it has proved itself. The first call checks."""
    # `index` makes a number of a size that a compiler holds as a symbol: the answer is for this very kernel.
    if isinstance(inputs, AttentionInputs):
        x, feature_map, position = inputs.q, inputs.feature_map, inputs.key_position
        kind = 'ExpMap' if isinstance(feature_map, ExpMap) else 'PowerMap'
        has_scale = isinstance(feature_map, PowerMap) and feature_map.scale is not None
        make_up: tuple[Any, ...] = (
            kind,
            has_scale,
            None if position is None else position.dtype,
            inputs.rotary is not None,
        )
    else:
        x, weight = inputs.attended, inputs.weight
        is_shared = weight.shape[0] == x.shape[3]
        make_up = ('mix_and_gate', index(weight.shape[3]), is_shared, weight.dtype, inputs.bias is not None)
    found = _objection(run, reference, x.device, x.dtype, index(x.shape[3]), *make_up)
    return [found] if found else []


@torch.compiler.assume_constant_result
def tell_once(message: str) -> None:
    """Log each distinct message once."""
    if message not in _told:
        _told.add(message)
        logging.getLogger('mmpola').warning(message)


@torch.compiler.assume_constant_result
def _objection(
    run: Callable[[Any], Tensor],
    reference: Callable[[Any], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    kind: str,
    *make_up: Any,
) -> str:
    """The one objection, or ''. A compiler that traces the caller takes the answer as a constant."""
    excess = BACKEND_EXCESS[torch.float16 if _products_are_tf32(dtype) else dtype]
    key = (run, device, dtype, excess, dim, kind, *make_up)
    if key not in _verdicts:
        if _is_capturing(device):
            return 'first met while a CUDA graph was captured; run the model once before'
        draw = _draw_epilogue if kind == 'mix_and_gate' else _draw_attention
        try:
            with _undisturbed(device):
                tensors, build = draw(device, dtype, dim, kind, *make_up)
                found = _compare(run, reference, tensors, build, excess)
        except torch.cuda.OutOfMemoryError:
            return 'no memory left for the self-check'  # asked again: this says nothing about the kernels
        except Exception as error:  # a compiler or a driver raises what it likes
            found = f'{type(error).__name__}: {error}'
        name = str(dtype).removeprefix('torch.')
        _verdicts[key] = found and f'self-check of {kind}, {name}, D={dim}, on {device} failed: {found}'
    return _verdicts[key]


def _is_capturing(device: torch.device) -> bool:
    return device.type == 'cuda' and torch.cuda.is_current_stream_capturing()


def _products_are_tf32(dtype: torch.dtype) -> bool:
    from mmpola.ops.triton.launch import product_precision

    return dtype == torch.float32 and product_precision(dtype) == 'tf32'


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Plain eager autograd, whatever the caller is inside of: no_grad, autocast, activation checkpointing, tracing."""
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
    """What errs by more than the reference in the same dtype plus the allowed excess, or ''. Errors are to float64."""
    found = _results(run, tensors, build)
    expected = _results(reference, tensors, build)
    exact = _results(reference, tensors, build, torch.float64)
    for name, truth in exact.items():
        errors = [float((x[name].double() - truth).norm() / truth.norm()) for x in (found, expected)]
        allowed = errors[1] + MARGIN * excess[name != 'output']
        if not errors[0] <= allowed:  # a NaN too
            return f'{name} errs by {errors[0]:.1e}, allowed {allowed:.1e}'
    return ''


def _results(
    run: Callable[[Any], Tensor],
    tensors: dict[str, Tensor | None],
    build: Callable[..., Any],
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """The output and the gradient of each tensor."""
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
    """Standard normal, drawn on the CPU from a generator of its own: the global random state stays."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device='cpu').to(device, dtype)


def _draw_attention(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    kind: str,
    has_scale: bool,
    position_dtype: torch.dtype | None,
    has_rotary: bool,
) -> tuple[dict[str, Tensor | None], Callable[..., AttentionInputs]]:
    heads, tokens = 2, TOKENS[device.type]
    # So many samples that a program loops over several blocks (launch.WAVES): pipelining and the running shift too.
    batch = torch.cuda.get_device_properties(device).multi_processor_count if device.type == 'cuda' else 1
    tensors: dict[str, Tensor | None] = {
        name: _normal(device, dtype, batch, tokens, heads, dim, seed=seed) for seed, name in enumerate('qkv')
    }
    tensors['key_position'] = None
    if position_dtype is not None:
        tensors['key_position'] = _normal(device, position_dtype, tokens, heads, dim, seed=3)
    size = dim if kind == 'PowerMap' else 2 * dim
    first, second = (_normal(device, torch.float32, heads, size, seed=seed).sigmoid() for seed in (4, 5))
    if kind == 'PowerMap':
        tensors |= {'exponent': 1 + 3 * first, 'scale': 0.5 + second if has_scale else None}
    else:
        tensors |= {'same': first, 'opposite': second}
    rotary = None
    if has_rotary:
        angle = _normal(device, torch.float32, tokens, dim, seed=6).repeat_interleave(2, dim=-1)
        rotary = angle.cos(), angle.sin()

    def build(q: Tensor, k: Tensor, v: Tensor, key_position: Tensor | None, **parameters: Any) -> AttentionInputs:
        feature_map = PowerMap(**parameters) if kind == 'PowerMap' else ExpMap(**parameters)
        return AttentionInputs(q, k, v, feature_map, key_position, rotary, EPS)

    return tensors, build


def _draw_epilogue(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    kind: str,
    kernel_size: int,
    is_shared: bool,
    weight_dtype: torch.dtype,
    has_bias: bool,
) -> tuple[dict[str, Tensor | None], Callable[..., EpilogueInputs]]:
    heads, tokens = 2, GRID[0] * GRID[1]
    channels = dim if is_shared else heads * dim
    tensors = {
        'attended': _normal(device, dtype, 1, tokens, heads, dim, seed=0),
        'values': _normal(device, dtype, 1, tokens, heads, dim, seed=1),
        'gate': _normal(device, dtype, 1, tokens, heads * dim, seed=2),
        'weight': _normal(device, weight_dtype, channels, 1, kernel_size, kernel_size, seed=3) / kernel_size,
        'bias': _normal(device, weight_dtype, channels, seed=4) if has_bias else None,
    }
    return tensors, lambda **leaves: EpilogueInputs(**leaves, grid=GRID)
