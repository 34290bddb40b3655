"""The two public operators: their contracts, backends, and checks of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from mmpola.ops import triton as triton_backend
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.inputs import AttentionInputs, FeatureMap, MixAndGateInputs
from mmpola.ops.numerics import DTYPES, default_eps
from mmpola.ops.reference import mix_and_gate_reference


def polarity_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    key_position: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    eps: float | None = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute polarity-aware linear attention (E1-E3) with the features of a map (E4-E13).

    Its time is O((N + M) D^2) per head.

    Source: PolaFormer (ICLR 2025), eq. 3-9, and PolaFormer++; the equations are numbered as
    in mmpola/ops/README.md. Differentiable with respect to every tensor except `rotary`. Features,
    sums and the normaliser are computed in float32 (float64 for float64 inputs).

    Args:
        q: queries [B, N, H, D], float16, bfloat16, float32 or float64, any strides; D even; N may
            be 0.
        k: keys [B, M, H, D], dtype and device of q, M >= 1.
        v: values [B, M, H, D]; channels [: D/2] are the same-signed stream, [D/2 :] the
            opposite-signed one.
        feature_map: PowerMap(exponent [H, D], scale [H, D] or None) or ExpMap(same [H, 2D],
            opposite [H, 2D]).
        key_position: [M, H, D] added to k, or None.
        rotary: (cos, sin), each [N, 2D], with equal angles for both channels of an interleaved
            pair; applied to the numerator only. Requires an ExpMap and M = N.
        eps: added to the normaliser, at least the smallest normal float32: a query of zeros gives 0
            even with eps = 0, but its gradient is then not finite. None for 1e-6.
        backend: 'auto' or the name of a backend, see `available_backends()`.

    Returns:
        o [B, N, H, D] in q's dtype.

    Raises:
        TypeError: a tensor has an unsupported dtype, or k or v has another dtype than q.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; the message lists every reason.
    """
    if eps is None:
        eps = default_eps()
    eps = max(eps, torch.finfo(torch.float32).tiny)
    inputs = AttentionInputs(q, k, v, feature_map, key_position, rotary, eps)
    validate_attention(inputs)
    return run_attention(inputs, backend)


def mix_and_gate(
    attended: Tensor,
    values: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grid: Sequence[int],
    *,
    backend: str = 'auto',
) -> Tensor:
    """Compute y = (o + DWC(v)) * g (E14) with a zero-padded depth-wise convolution DWC of tokens.

    The tokens are the cells of a map or the elements of a sequence.

    Source: PolaFormer (ICLR 2025); the equations are numbered as in mmpola/ops/README.md.
    Differentiable with respect to every tensor.

    Args:
        attended: o [B, N, H, D], float16, bfloat16, float32 or float64, any strides.
        values: v [B, N, H, D]; the tokens of a map are in row-major order; dtype and device of
            `attended`.
        gate: g [B, N, C], C = H * D, dtype and device of `attended`.
        weight: [C, 1, k, k], or [D, 1, k, k] shared by all heads; for a sequence [C, 1, k] or
            [D, 1, k]; k odd; any of the dtypes above.
        bias: one entry per channel of `weight`, or None.
        grid: (h, w) with h * w = N for a map, (N,) for a sequence; N may be 0.
        backend: 'auto' or the name of a backend, see `available_backends()`.

    Returns:
        y [B, N, C] in the dtype of `attended`.

    Raises:
        TypeError: a tensor has an unsupported dtype, or values or gate has another dtype than
            `attended`.
        ValueError: a shape or device does not fit, or the backend's name is unknown.
        RuntimeError: the named backend cannot run; the message lists every reason.
    """
    inputs = MixAndGateInputs(attended, values, gate, weight, bias, grid)
    validate_mix_and_gate(inputs)
    return run_mix_and_gate(inputs, backend)


# ---- Without checks of the arguments: layers know that theirs fit each other


def run_attention(inputs: AttentionInputs, backend: str) -> Tensor:
    """Compute `polarity_attention` of arguments that `validate_attention` would accept."""
    if _receive is not None:
        _receive(inputs)
    chosen = choose_backend(backend, inputs, inputs.q.device)
    return chosen.polarity_attention(inputs)


def run_mix_and_gate(inputs: MixAndGateInputs, backend: str) -> Tensor:
    """Compute `mix_and_gate` of arguments that `validate_mix_and_gate` would accept."""
    if _receive is not None:
        _receive(inputs)
    if len(inputs.grid) == 1:
        inputs = inputs.as_map()
    chosen = choose_backend(backend, inputs, inputs.attended.device)
    return chosen.mix_and_gate(inputs)


Inputs = AttentionInputs | MixAndGateInputs

_receive: Callable[[Inputs], None] | None = None


@contextmanager
def record_inputs(receive: Callable[[Inputs], None]) -> Iterator[None]:
    """Inside the block, call `receive` with the inputs of each call of either operator."""
    global _receive
    outer = _receive
    _receive = receive
    try:
        yield
    finally:
        _receive = outer


# ---- Backends


@dataclass(frozen=True)
class Backend:
    """One way to compute both operators.

    Args:
        name: value of the argument `backend` that selects it.
        missing: returns the reasons why it cannot run on this machine at all.
        unsupported: returns the reasons why it cannot handle the inputs of an operator.
        polarity_attention: computes o [B, N, H, D], differentiable, in q's dtype.
        mix_and_gate: computes y [B, N, C], differentiable, in the dtype of `attended`.
        device_type: the device type on which 'auto' considers it; None: any.
        distrusted: returns the reasons why 'auto' does not choose it for inputs that it can handle.
    """

    name: str
    missing: Callable[[], list[str]]
    unsupported: Callable[[Inputs], list[str]]
    polarity_attention: Callable[[AttentionInputs], Tensor]
    mix_and_gate: Callable[[MixAndGateInputs], Tensor]
    device_type: str | None = None
    distrusted: Callable[[Inputs], list[str]] = lambda inputs: []


BACKENDS: tuple[Backend, ...] = (
    Backend(
        'triton',
        missing=triton_backend.missing,
        unsupported=triton_backend.unsupported,
        polarity_attention=triton_backend.polarity_attention_triton,
        mix_and_gate=triton_backend.mix_and_gate_triton,
        device_type='cuda',
        distrusted=triton_backend.distrusted,
    ),
    Backend(
        'torch',
        missing=list,
        unsupported=lambda inputs: [],
        polarity_attention=polarity_attention_chunked,
        mix_and_gate=mix_and_gate_reference,
    ),
)
"""In the order in which 'auto' considers them: it takes the first without a reason against it.

The last one serves every input.
"""

BACKEND_NAMES = ['auto'] + [backend.name for backend in BACKENDS]
"""Values of the argument `backend`."""


def available_backends() -> list[str]:
    """Return the names of the backends that can run on this machine, fastest first."""
    return [backend.name for backend in BACKENDS if not backend.missing()]


def unavailable_backends() -> dict[str, list[str]]:
    """Return the backends that cannot run on this machine, each with every reason."""
    unavailable = {}
    for backend in BACKENDS:
        reasons = backend.missing()
        if reasons:
            unavailable[backend.name] = reasons
    return unavailable


def check_backend_name(name: str) -> None:
    """Raise ValueError unless `name` is 'auto' or the name of a backend."""
    if name not in BACKEND_NAMES:
        raise ValueError(f'backend: expected one of {BACKEND_NAMES}, got {name!r}')


def choose_backend(name: str, inputs: Inputs, device: torch.device) -> Backend:
    """Return the backend called `name`, or for 'auto' the first without a reason against it.

    Each reason why 'auto' does not choose a backend is logged once per process.

    Args:
        name: 'auto' or the name of a backend.
        inputs: arguments of the operator.
        device: device of the arguments.

    Raises:
        ValueError: `name` is unknown.
        RuntimeError: the named backend cannot handle the inputs; the message lists every reason.
    """
    if name == 'auto':
        for backend in BACKENDS[:-1]:
            if backend.device_type not in (None, device.type):
                continue
            reasons = backend.missing() or backend.unsupported(inputs) or backend.distrusted(inputs)
            if not reasons:
                return backend
            from mmpola.kernels.record import log_once  # imports torch._dynamo: slow

            for reason in reasons:
                log_once(f"backend='auto' does not use {backend.name!r}: {reason}")
        return BACKENDS[-1]
    check_backend_name(name)
    backend = {backend.name: backend for backend in BACKENDS}[name]
    reasons = backend.missing() or backend.unsupported(inputs)
    if reasons:
        raise RuntimeError(f'backend {name!r} cannot run: ' + '; '.join(reasons))
    return backend


# ---- Checks of the arguments

TOKENS = ('B', 'N', 'H', 'D')
KEYS = ('B', 'M', 'H', 'D')

Row = tuple[str, Tensor, tuple[str, ...] | None]
"""Name, tensor and axes of an argument; None: any shape."""


def validate_attention(inputs: AttentionInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `polarity_attention`.

    Raises:
        TypeError: an argument is not a tensor or feature map, has an unsupported dtype, or is k or
            v with another dtype than q.
        ValueError: a shape or a device does not fit.
    """
    feature_map = inputs.feature_map
    position = inputs.key_position
    rotary = inputs.rotary
    if not isinstance(feature_map, FeatureMap):
        raise TypeError(f'feature_map: expected a FeatureMap, got {type(feature_map).__name__}')
    table: list[Row] = [('q', inputs.q, TOKENS), ('k', inputs.k, KEYS), ('v', inputs.v, KEYS)]
    if position is not None:
        table.append(('key_position', position, ('M', 'H', 'D')))
    for name, axes in feature_map.AXES.items():
        parameter = getattr(feature_map, name)
        if parameter is not None or name not in feature_map.OPTIONAL:
            table.append((f'feature_map.{name}', parameter, axes))
    if rotary is not None:
        if not feature_map.TAKES_ROTARY:
            given = type(feature_map).__name__
            raise ValueError(
                f'rotary: expected a feature_map that takes it, as ExpMap, got {given}'
            )
        if not isinstance(rotary, tuple) or len(rotary) != 2:
            raise TypeError(f'rotary: expected (cos, sin), got {type(rotary).__name__}')
        table.append(('rotary cos', rotary[0], ('N', '2D')))
        table.append(('rotary sin', rotary[1], ('N', '2D')))
    sizes = _check_tensors(table)
    if sizes['D'] % 2 or sizes['D'] == 0:
        rule = 'an even head dimension D (values split into two streams)'
        raise ValueError(f'q: expected {rule}, got D={sizes["D"]}')
    if sizes['M'] == 0:
        raise ValueError('k: expected at least one key (M >= 1), got M=0')
    if rotary is not None and sizes['N'] != sizes['M']:
        rule = 'as many keys as queries (one table serves both)'
        raise ValueError(f'rotary: expected {rule}, got N={sizes["N"]}, M={sizes["M"]}')


def validate_mix_and_gate(inputs: MixAndGateInputs) -> None:
    """Check types, dtypes, devices and shapes of the arguments of `mix_and_gate`.

    Raises:
        TypeError: an argument is not a tensor, has an unsupported dtype, or is values or gate with
            another dtype than attended.
        ValueError: a shape or a device does not fit.
    """
    weight = inputs.weight
    bias = inputs.bias
    grid = inputs.grid
    table: list[Row] = [
        ('attended', inputs.attended, TOKENS),
        ('values', inputs.values, TOKENS),
        ('gate', inputs.gate, ('B', 'N', 'C')),
        ('weight', weight, None),
    ]
    if bias is not None:
        table.append(('bias', bias, None))
    sizes = _check_tensors(table)
    tokens = sizes['N']
    dim = sizes['D']
    channels = sizes['C']
    if not (is_grid(grid) or is_grid(grid, axes=1)) or prod(grid) != tokens:
        raise ValueError(f'grid: expected (N,) or (h, w) with h * w = N = {tokens}, got {grid!r}')
    shape = weight.shape
    fits = weight.ndim == 2 + len(grid) and shape[0] in (dim, channels) and shape[1] == 1
    fits = fits and shape[2] == shape[-1] and shape[2] % 2 == 1
    if not fits:
        window = 'k' if len(grid) == 1 else 'k, k'
        rule = f'[D, 1, {window}] or [C, 1, {window}] with D={dim}, C={channels} and k odd'
        raise ValueError(f'weight: expected {rule}, got {list(shape)}')
    if bias is not None and tuple(bias.shape) != (shape[0],):
        raise ValueError(f'bias: expected {[shape[0]]} like weight, got {list(bias.shape)}')


def is_grid(value: Any, axes: int = 2) -> bool:
    """Whether a value is a sequence of `axes` sides, which may be tensors or symbols."""
    if not isinstance(value, Sequence) or len(value) != axes:
        return False
    return all(not isinstance(side, float) and side >= 0 for side in value)


def _check_tensors(table: Sequence[Row]) -> dict[str, int]:
    """Check types, dtypes, devices and axes, and return the size of each axis.

    The tensor of the first row has the axes [B, N, H, D], which give 2D and C = H * D. All tensors
    must have its device, and those with a batch axis its dtype.
    """
    like_name, like, _ = table[0]
    sizes: dict[str, int] = {}
    for name, x, axes in table:
        if not isinstance(x, Tensor):
            raise TypeError(f'{name}: expected a tensor, got {type(x).__name__}')
        if x.dtype not in DTYPES:
            rule = 'float16, bfloat16, float32 or float64'
            raise TypeError(f'{name}: expected {rule}, got {_dtype_name(x.dtype)}')
        if x.device != like.device:
            rule = f'the device of {like_name}, {like.device}'
            raise ValueError(f'{name}: expected {rule}, got {x.device}')
        if axes is None:
            continue
        if axes[0] == 'B' and x.dtype != like.dtype:
            rule = f'the dtype of {like_name}, {_dtype_name(like.dtype)}'
            raise TypeError(f'{name}: expected {rule}, got {_dtype_name(x.dtype)}')
        fits = x.ndim == len(axes)
        if fits:
            for axis, size in zip(axes, x.shape, strict=True):
                fits = fits and sizes.setdefault(axis, size) == size
        if not fits:
            rule = f'[{", ".join(axes)}]'
            known = [f'{axis}={sizes[axis]}' for axis in axes if axis in sizes]
            if known:
                rule += f' with {", ".join(known)}'
            raise ValueError(f'{name}: expected {rule}, got {list(x.shape)}')
        if x is like:
            sizes['2D'] = 2 * sizes['D']
            sizes['C'] = sizes['H'] * sizes['D']
    return sizes


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
