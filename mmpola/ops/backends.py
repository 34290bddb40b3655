"""The one ordered table of backends. Each says why it cannot serve given inputs: an empty list means it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.streaming import reference_attention
from mmpola.ops.triton import support as triton_support


@dataclass(frozen=True)
class Backend:
    """A way to compute the operator.

    Args:
        name: what `backend=` accepts.
        missing: reasons why it cannot run on this machine at all.
        unsupported: reasons why it cannot serve these inputs.
        run: computes o [B, N, H, D], differentiable, in q's dtype.
        not_automatic: why 'auto' does not take it; empty where it may.
    """

    name: str
    missing: Callable[[], list[str]]
    unsupported: Callable[[AttentionInputs], list[str]]
    run: Callable[[AttentionInputs], Tensor]
    not_automatic: str = ''


BACKENDS: tuple[Backend, ...] = (
    Backend(
        'triton',
        missing=triton_support.missing,
        unsupported=triton_support.unsupported,
        run=triton_support.run,
        not_automatic=triton_support.NOT_AUTOMATIC,
    ),
    Backend('reference', missing=list, unsupported=lambda inputs: [], run=reference_attention),
)
"""Fastest first: 'auto' takes the first automatic one that has no reason against it."""


def available_backends() -> list[str]:
    """Names of the backends that can run on this machine, fastest first."""
    return [backend.name for backend in BACKENDS if not backend.missing()]


def unavailable_backends() -> dict[str, list[str]]:
    """Backends that cannot run on this machine, each with every reason why."""
    return {backend.name: reasons for backend in BACKENDS if (reasons := backend.missing())}


def check_backend_name(name: str) -> None:
    """Raise ValueError unless `name` is 'auto' or a backend's."""
    names = ['auto', *(backend.name for backend in BACKENDS)]
    if name not in names:
        raise ValueError(f'backend: expected one of {names}, got {name!r}')


def choose_backend(name: str, inputs: AttentionInputs) -> Backend:
    """The backend for `inputs`.

    Raises:
        ValueError: `name` is unknown.
        RuntimeError: a named backend cannot serve the inputs; lists every reason.
    """
    check_backend_name(name)
    for backend in BACKENDS:
        if name == backend.name or (name == 'auto' and not backend.not_automatic):
            reasons = backend.missing() or backend.unsupported(inputs)
            if not reasons:
                return backend
            if name == backend.name:
                raise RuntimeError(f'backend {name!r} cannot run: ' + '; '.join(reasons))
    raise RuntimeError('no backend can serve these inputs')
