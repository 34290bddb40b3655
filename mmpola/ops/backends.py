"""The ordered table of backends; each lists the reasons why it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton import backend as triton_backend

Inputs = AttentionInputs | MixAndGateInputs


@dataclass(frozen=True)
class Backend:
    """One way to compute both operators.

    Args:
        name: value of the argument `backend` that selects it.
        missing: returns the reasons why it cannot run on this machine at all.
        unsupported: returns the reasons why it cannot handle the inputs of an operator.
        polarity_attention: computes o [B, N, H, D], differentiable, in q's dtype.
        mix_and_gate: computes y [B, N, C], differentiable, in the dtype of `attended`.
        automatic_on: the device type on which 'auto' may choose it, after a self-check. None: any
            device, without one.
    """

    name: str
    missing: Callable[[], list[str]]
    unsupported: Callable[[Inputs], list[str]]
    polarity_attention: Callable[[AttentionInputs], Tensor]
    mix_and_gate: Callable[[MixAndGateInputs], Tensor]
    automatic_on: str | None = None


BACKENDS: tuple[Backend, ...] = (
    Backend(
        'triton',
        missing=triton_backend.missing,
        unsupported=triton_backend.unsupported,
        polarity_attention=triton_backend.polarity_attention_triton,
        mix_and_gate=triton_backend.mix_and_gate_triton,
        automatic_on='cuda',
    ),
    Backend(
        'torch',
        missing=list,
        unsupported=lambda inputs: [],
        polarity_attention=polarity_attention_chunked,
        mix_and_gate=mix_and_gate_reference,
    ),
)
"""Fastest first; 'auto' chooses the first one that can run and passes its self-check."""

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
    """Return the backend called `name`, or for 'auto' the first one that can run.

    Args:
        name: of a backend, or 'auto'.
        inputs: arguments of the operator.
        device: their device.

    Raises:
        ValueError: `name` is unknown.
        RuntimeError: the named backend cannot handle the inputs; the message lists every reason.
    """
    for backend in BACKENDS:
        if name == 'auto':
            if backend.automatic_on is None:
                return backend
            if backend.automatic_on == device.type and _passes_self_check(backend, inputs):
                return backend
        elif name == backend.name:
            reasons = backend.missing() or backend.unsupported(inputs)
            if reasons:
                raise RuntimeError(f'backend {name!r} cannot run: ' + '; '.join(reasons))
            return backend
    check_backend_name(name)
    raise RuntimeError('no backend can serve these inputs')


def _passes_self_check(backend: Backend, inputs: Inputs) -> bool:
    """Whether 'auto' may choose a backend on its device; if not, log the reasons once."""
    from mmpola.ops.self_check import failures, log_once  # imports torch._dynamo, which is slow

    reasons = backend.missing() or backend.unsupported(inputs)
    if not reasons:
        if isinstance(inputs, AttentionInputs):
            reasons = failures(backend.polarity_attention, polarity_attention_chunked, inputs)
        else:
            reasons = failures(backend.mix_and_gate, mix_and_gate_reference, inputs)
    for reason in reasons:
        log_once(f"backend='auto' does not use {backend.name!r}: {reason}")
    return not reasons
