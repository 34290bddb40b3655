"""The kernels as two operators of torch.library: what autograd and torch.compile see of the `triton` backend."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mmpola.ops.feature_map import PowerMap
from mmpola.ops.inputs import AttentionInputs
from mmpola.ops.triton.forward import make_state, read_state
from mmpola.ops.triton.key_gradient import key_gradient
from mmpola.ops.triton.query_gradient import query_gradient
from mmpola.ops.triton.tensors import Parameters, as_tokens

SMALL = (
    'Tensor? key_position, Tensor? exponent, Tensor? scale, Tensor? same, Tensor? opposite, Tensor? cos, Tensor? sin'
)
DIFFERENTIABLE = ('q', 'k', 'v', 'key_position', 'exponent', 'scale', 'same', 'opposite')
"""The first arguments of both operators, in their order."""


def attention(inputs: AttentionInputs) -> Tensor:
    """o [B, N, H, D] in q's dtype."""
    feature_map, rotary = inputs.feature_map, inputs.rotary or (None, None)
    if isinstance(feature_map, PowerMap):
        parameters = [feature_map.exponent, feature_map.scale, None, None]
    else:
        parameters = [None, None, feature_map.same, feature_map.opposite]
    floats = [None if x is None else x.float() for x in (*parameters, *rotary)]
    output, *_ = polarity_attention(inputs.q, inputs.k, inputs.v, inputs.key_position, *floats, inputs.eps)
    return output


@torch.library.custom_op(
    'mmpola::polarity_attention',
    mutates_args=(),
    schema=f'(Tensor q, Tensor k, Tensor v, {SMALL}, float eps) -> (Tensor, Tensor, Tensor, Tensor)',
)
def polarity_attention(q: Tensor, k: Tensor, v: Tensor, *small_and_eps: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o [B, N, H, D]; for the gradient operator, in float32, state [B, H, 2D, D], key mean and shift [B, H, 2D].

    A PowerMap has no shift: an empty tensor.
    """
    *small, eps = small_and_eps
    parameters = Parameters.of(*small)
    state, mean, shift = make_state(as_tokens(k), as_tokens(v), parameters)
    output = read_state(as_tokens(q), state, mean, shift, parameters, eps)
    return output, state, mean, mean.new_empty(0) if shift is None else shift


@torch.library.custom_op(
    'mmpola::polarity_attention_gradient',
    mutates_args=(),
    schema=f'(Tensor q, Tensor k, Tensor v, {SMALL}, float eps, Tensor do, Tensor state, Tensor mean, Tensor shift,'
    ' bool[] wanted)'
    ' -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def polarity_attention_gradient(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    """Gradients of DIFFERENTIABLE; an empty tensor where not wanted.

    A wanted position's gradient is the sum over the batch of dk as stored: one rounding of q's dtype more.
    """
    *small, eps, do, state, mean, shift, wanted = rest
    parameters = Parameters.of(*small)
    q, k, v, do = (as_tokens(x) for x in (q, k, v, do))
    wants = dict(zip(DIFFERENTIABLE, wanted, strict=True))
    is_power = parameters.exponent is not None
    shift = None if is_power else shift
    want_map = any(wants[name] for name in DIFFERENTIABLE[4:])
    want_key = wants['k'] or wants['key_position']
    want_keys_pass = want_key or wants['v'] or (is_power and want_map)
    found: dict[str, Tensor | None] = {}
    found['q'], dstate, dmean, d_map = query_gradient(
        do, q, state, mean, shift, parameters, eps, (wants['q'], want_keys_pass, want_map)
    )
    if dstate is not None and dmean is not None:
        keys = k.shape[1]
        found['k'], found['v'], more = key_gradient(
            k, v, dstate / keys, dmean / keys, shift, parameters, (want_key, wants['v'], is_power and want_map)
        )
        if d_map is not None and more is not None:
            d_map = d_map + more
    if wants['key_position'] and (dk := found['k']) is not None and parameters.key_position is not None:
        found['key_position'] = dk.sum(0, dtype=torch.float32).to(parameters.key_position.dtype)
    if d_map is not None:
        found.update(_of_map(d_map, parameters))
    # A tensor of its own for each: an operator's results may not share memory.
    return tuple(found[name] if want else torch.empty(0, device=q.device) for name, want in wants.items())


def _of_map(rows: Tensor, parameters: Parameters) -> dict[str, Tensor | None]:
    """The kernels' rows [H, 4, D] -> gradients of the map's parameters."""
    if parameters.exponent is None:
        return {'same': rows[:, :2].flatten(1).clone(), 'opposite': rows[:, 2:].flatten(1).clone()}
    # u = x / s, so ds = -(sum u du) / s.
    d_scale = None if parameters.scale is None else -rows[:, 1] / parameters.scale
    return {'exponent': rows[:, 0] * math.log(2), 'scale': d_scale}


@polarity_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *small_and_eps: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, _, heads, dim = q.shape
    state = torch.empty(batch, heads, 2 * dim, dim, device=q.device, dtype=torch.float32)
    mean = torch.empty(batch, heads, 2 * dim, device=q.device, dtype=torch.float32)
    is_power = Parameters(*small_and_eps[:-1]).exponent is not None
    shift = mean.new_empty(0) if is_power else torch.empty_like(mean)
    return torch.empty(q.shape, device=q.device, dtype=q.dtype), state, mean, shift


@polarity_attention_gradient.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    tensors, wanted = arguments[: len(DIFFERENTIABLE)], arguments[-1]
    return tuple(
        torch.empty(x.shape, device=x.device, dtype=x.dtype) if want else torch.empty(0, device=arguments[0].device)
        for x, want in zip(tensors, wanted, strict=True)
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.eps = inputs
    _, *made = output
    ctx.mark_non_differentiable(*made)
    ctx.save_for_backward(*tensors, *made)


def _gradient(ctx: Any, do: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, state, mean, shift = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[: len(DIFFERENTIABLE)])
    found = polarity_attention_gradient(*tensors, ctx.eps, do, state, mean, shift, wanted)
    return *(d if want else None for d, want in zip(found, wanted, strict=True)), None, None, None


def no_second_gradient(ctx: Any, *_: Any) -> None:
    """The derivative of a gradient operator: refused."""
    raise RuntimeError("backend 'triton' has no second derivative: choose backend='reference'")


polarity_attention.register_autograd(_gradient, setup_context=_save)
polarity_attention_gradient.register_autograd(no_second_gradient)


@register_flop_formula([torch.ops.mmpola.polarity_attention, torch.ops.mmpola.polarity_attention_gradient])
def _flops(q: Any, k: Any, *rest: Any, **_: Any) -> int:
    """Two products [2D, D] per token forward, four backward; shapes come in place of tensors."""
    batch, queries, heads, dim = q
    is_gradient = isinstance(rest[-1], list)
    return (4 if is_gradient else 2) * 2 * batch * heads * (queries + k[1]) * dim * dim
