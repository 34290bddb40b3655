"""The one ordered table of backends. Each says why it cannot serve given inputs: an empty list means it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmpola.ops.depthwise import reference_epilogue
from mmpola.ops.epilogue_inputs import EpilogueInputs
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.streaming import reference_attention
from mmpola.ops.triton import support as triton_support

Inputs = AttentionInputs | EpilogueInputs


@dataclass(frozen=True)
class Backend:
    """A way to compute both operators.

    Args:
        name: what `backend=` accepts.
        missing: reasons why it cannot run on this machine at all.
        unsupported: reasons why it cannot serve these inputs, whose type says which operator is meant.
        attend: `polarity_attention`, o [B, N, H, D], differentiable, in q's dtype.
        mix_and_gate: the epilogue, y [B, N, C], differentiable, in the dtype of `attended`.
        automatic_on: the type of device on which 'auto' takes it, where it has proved itself; None: anywhere, unproved.
    """

    name: str
    missing: Callable[[], list[str]]
    unsupported: Callable[[Inputs], list[str]]
    attend: Callable[[AttentionInputs], Tensor]
    mix_and_gate: Callable[[EpilogueInputs], Tensor]
    automatic_on: str | None = None


BACKENDS: tuple[Backend, ...] = (
    Backend(
        'triton',
        missing=triton_support.missing,
        unsupported=triton_support.unsupported,
        attend=triton_support.attend,
        mix_and_gate=triton_support.mix_and_gate,
        automatic_on='cuda',
    ),
    Backend(
        'reference',
        missing=list,
        unsupported=lambda inputs: [],
        attend=reference_attention,
        mix_and_gate=reference_epilogue,
    ),
)
"""Fastest first: 'auto' takes the first that it may."""


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


def choose_backend(name: str, inputs: Inputs) -> Backend:
    """The backend for `inputs`.

    Raises:
        ValueError: `name` is unknown.
        RuntimeError: a named backend cannot serve the inputs; lists every reason.
    """
    check_backend_name(name)
    for backend in BACKENDS:
        if name == backend.name:
            reasons = backend.missing() or backend.unsupported(inputs)
            if reasons:
                raise RuntimeError(f'backend {name!r} cannot run: ' + '; '.join(reasons))
            return backend
        if name == 'auto' and _is_automatic(backend, inputs):
            return backend
    raise RuntimeError('no backend can serve these inputs')


def _is_automatic(backend: Backend, inputs: Inputs) -> bool:
    """Whether 'auto' takes `backend`. Where it could have helped but may not, the log says why, once."""
    if backend.automatic_on is None:
        return True
    x = inputs.q if isinstance(inputs, AttentionInputs) else inputs.attended
    if x.device.type != backend.automatic_on:
        return False  # nothing is lost there
    from mmpola.ops.self_check import objections, tell_once  # brings torch._dynamo along: slow to import

    reasons = backend.missing() or backend.unsupported(inputs)
    if not reasons:
        if isinstance(inputs, AttentionInputs):
            reasons = objections(backend.attend, reference_attention, inputs)
        else:
            reasons = objections(backend.mix_and_gate, reference_epilogue, inputs)
    for reason in reasons:
        tell_once(f"backend='auto' does without {backend.name!r}: {reason}")
    return not reasons
