"""The passes of attention, which both feature maps share: state, output and their gradients.

A pass allocates its results and launches a kernel of power.py or exp.py. It names the arguments of
both maps' kernels; `Plan.launch` gives a kernel those that it takes.

The state of all heads is one float32 tensor [B * H, SIZE]; a row has S [2D, D], then k̄ [2D] (E1,
E2), then for an ExpMap the shift [2D] (E11). Programs that share a head write partial states, which
`combine_states_kernel` adds in a fixed order, so that results are reproducible.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# ruff: noqa: N803

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmpola.ops.triton import block_of, exp, power, processors_of, product_precision
from mmpola.ops.triton.blocks import FUSION_OPTIONS

MAP_MODULES: dict[str, ModuleType] = {'power': power, 'exp': exp}
"""By the `KIND` of a feature map."""


@triton.jit(do_not_specialize=['chunks'])
def combine_states_kernel(
    p_parts, p_combined, chunks,
    D: tl.constexpr, BP: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, HAS_SHIFT: tl.constexpr,
):  # fmt: skip
    """Add partial states or gradients [B * H, chunks, SIZE].

    A program adds BR rows of S with their entries of k̄, BP chunks at a time. With shifts (E11) all
    parts are first brought to the largest shift.
    """
    size: tl.constexpr = 2 * D * (D + 2) if HAS_SHIFT else 2 * D * (D + 1)
    i_bh = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BP)
    o_r = tl.program_id(1) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m_r = o_r < 2 * D
    m_d = o_d < D
    o_rows = o_r[:, None] * D + o_d[None, :]
    p_parts += i_bh * chunks * size
    p_combined += i_bh * size
    b_shift = tl.zeros((BR,), tl.float32)
    if HAS_SHIFT:
        b_shifts = tl.zeros((BP, BR), tl.float32)
        for i_p in range(0, chunks, BP):
            m_p = (i_p + o_p < chunks)[:, None] & m_r[None, :]
            p_shift = p_parts + 2 * D * (D + 1) + ((i_p + o_p) * size)[:, None] + o_r[None, :]
            b_shifts = tl.maximum(b_shifts, tl.load(p_shift, mask=m_p, other=0.0))
        b_shift = tl.max(b_shifts, 0)
        tl.store(p_combined + 2 * D * (D + 1) + o_r, b_shift, mask=m_r)
    b_rows = tl.zeros((BP, BR, BD), tl.float32)
    b_means = tl.zeros((BP, BR), tl.float32)
    for i_p in range(0, chunks, BP):
        m_p = (i_p + o_p < chunks)[:, None] & m_r[None, :]
        p_part = p_parts + (i_p + o_p) * size
        b_part = tl.load(
            p_part[:, None, None] + o_rows[None, :, :],
            mask=m_p[:, :, None] & m_d[None, None, :],
            other=0.0,
        )
        p_mean = p_part[:, None] + 2 * D * D + o_r[None, :]
        b_mean = tl.load(p_mean, mask=m_p, other=0.0)
        if HAS_SHIFT:
            b_decay = tl.exp(tl.load(p_mean + 2 * D, mask=m_p, other=0.0) - b_shift[None, :])
            b_part *= b_decay[:, :, None]
            b_mean *= b_decay
        b_rows += b_part
        b_means += b_mean
    tl.store(p_combined + o_rows, tl.sum(b_rows, 0), mask=m_r[:, None] & m_d[None, :])
    tl.store(p_combined + 2 * D * D + o_r, tl.sum(b_means, 0), mask=m_r)


# ---- How tokens are split over programs

LARGEST_SHARE = 50
"""Memory traffic that partial states may cause, in percent of the traffic of four token tensors.

It lets the shapes of published models fill a GPU.
"""


@dataclass(frozen=True)
class Plan:
    """How a kernel is launched on tokens of one shape."""

    kernel: Any
    grid: tuple[int, int]  # (B * H, chunks) programs
    names: tuple[str, ...]  # of the kernel's arguments other than the constants
    constants: dict[str, Any]  # arguments that depend on the shape alone, and compiler options

    def launch(self, **arguments: Any) -> None:
        """Launch the kernel, if there are tokens, with the arguments that it takes."""
        if 0 in self.grid:
            return
        taken = {name: arguments[name] for name in self.names}
        self.kernel[self.grid](**taken, **self.constants)


@lru_cache(maxsize=4096)
def plan_pass(
    name: str,
    kind: str,
    has_rotary: bool,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    precision: str,
) -> Plan:
    """Split the tokens of a tensor [B, N, H, D] over the programs of a pass.

    The grid's first axis, limited to 2^31 - 1, has B * H programs; the second, limited to 65,535,
    has a program per chunk.
    """
    batch, tokens, heads, dim = shape
    rows = batch * heads
    block = block_of(dim)
    launch = MAP_MODULES[kind].launches(precision, has_rotary)[name, block]
    blocks = triton.cdiv(tokens, launch.tokens)
    most = blocks
    if name in ('state', 'query_gradient'):
        # Each chunk writes a float32 state [2D, D + 1], which is read again
        state_bytes = 2 * 4 * gradient_size(dim)
        token_bytes = 4 * tokens * dim * dtype.itemsize
        most = min(most, int(LARGEST_SHARE / 100 * (token_bytes / state_bytes)))
    chunks = chunks_per_row(rows, launch.programs * processors_of(device), most)
    tokens_per_chunk = triton.cdiv(blocks, chunks) * launch.tokens
    grid = (rows, triton.cdiv(tokens, max(1, tokens_per_chunk)))
    kernel = MAP_MODULES[kind].KERNELS[name]
    constants = {
        'tokens': tokens_per_chunk,
        'D': dim,
        'BN': launch.tokens,
        'BD': block,
        'PRECISION': precision,
        'num_warps': launch.warps,
        'num_stages': launch.stages,
        **FUSION_OPTIONS,
    }
    if 'BC' in kernel.arg_names:
        constants['BC'] = block_of(dim // 2)  # channels of one value stream
    names = tuple(argument for argument in kernel.arg_names if argument not in constants)
    return Plan(kernel, grid, names, constants)


def chunks_per_row(rows: int, slots: int, most: int) -> int:
    """Return into how many chunks to split each of B * H rows, at most `most`, to fill the GPU.

    There is a program for each row and chunk. Programs run in rounds of `slots`. Avoid a last round
    that is nearly empty: the GPU would idle for most of it. More than four rounds are not worth
    their partial states.
    """
    rows = max(1, rows)
    chunks = 1
    for rounds in range(1, 5):
        chunks = rounds * slots // rows
        if rows * chunks >= 0.9 * rounds * slots:
            break
    return max(1, min(most, chunks))


# ---- The arguments of a call

LARGEST_TOKEN_STRIDE = 2**22
"""Token strides must be below it: offsets in four blocks of up to 128 tokens are 32-bit."""


class Call(NamedTuple):
    """The arguments of the operator, as the kernels read them."""

    q: Tensor  # [B, N, H, D]; unit stride in D, as k and v
    k: Tensor  # [B, M, H, D]
    v: Tensor
    tensors: dict[str, Tensor | None]  # the others, contiguous, by their names in the kernels
    eps: float
    kind: str

    def plan(self, name: str, x: Tensor) -> Plan:
        """Return the plan of a pass over x, q or k."""
        has_rotary = self.tensors['p_cos'] is not None
        precision = product_precision(x.dtype)
        return plan_pass(name, self.kind, has_rotary, x.shape, x.dtype, x.device, precision)


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_position: Tensor | None,
    exponent_or_same: Tensor,
    scale_or_opposite: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
    kind: str,
) -> Call:
    """Name the arguments; copy tensors whose strides the kernels cannot use."""
    name, other_name = MAP_MODULES[kind].PARAMETERS
    tensors = {
        'p_position': key_position,
        f'p_{name}': exponent_or_same,
        f'p_{other_name}': scale_or_opposite,
        'p_cos': cos,
        'p_sin': sin,
    }
    for argument, x in tensors.items():
        if x is not None:
            tensors[argument] = x.contiguous()
    return Call(as_tokens(q), as_tokens(k), as_tokens(v), tensors, eps, kind)


def as_tokens(x: Tensor) -> Tensor:
    """Return x [B, N, H, D], or a contiguous copy if the stride of D or N does not serve."""
    if x.stride(3) == 1 and x.stride(1) < LARGEST_TOKEN_STRIDE:
        return x
    return x.contiguous()


def token_arguments(name: str, x: Tensor) -> dict[str, Any]:
    """Name the pointer and the strides of x [B, N, H, D] as kernels do."""
    batch, token, head, _ = x.stride()
    return {f'p_{name}': x, f'{name}_b': batch, f'{name}_n': token, f'{name}_h': head}


# ---- The passes


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype, and the state [B * H, SIZE].

    Takes the arguments of `make_call`.
    """
    call = make_call(*arguments)
    state = compute_state(call)
    return compute_output(call, state), state


def allocate(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Allocate what `forward` returns."""
    batch, _, heads, dim = q.shape
    return like(q), floats(q, batch * heads, state_size(others[-1], dim))


def backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the first six arguments (E15-E18a), None if not wanted.

    Takes the arguments of `make_call`, then do, the state and which of the six gradients are
    wanted. That of the key position is the sum over the batch of dk as it is stored, that is,
    rounded to q's dtype.
    """
    *inputs, do, state, wanted = arguments
    call = make_call(*inputs)
    feature_map = MAP_MODULES[call.kind]
    wants_q, wants_k, wants_v, wants_position, *wants_parameters = wanted
    wants_dk = wants_k or wants_position
    sums_queries, sums_keys, sums_state = feature_map.sums_needed(*wants_parameters)
    wants_keys = wants_dk or wants_v or sums_keys
    wants_state = wants_keys or sums_state

    batch, keys, _, dim = call.k.shape
    dq, state_parts, query_sums = compute_query_gradient(
        call, as_tokens(do), state, (wants_q, wants_state, sums_queries)
    )
    dk = None
    dv = None
    d_position = None
    d_state = None
    key_sums = None
    if state_parts is not None:
        d_state = combine(state_parts, dim)
        if wants_keys:
            dk, dv, key_sums = compute_key_gradient(
                call, state, d_state, (wants_dk, wants_v, sums_keys)
            )
    position = call.tensors['p_position']
    if wants_position and dk is not None and position is not None:
        d_position = dk.sum(0, dtype=position.dtype)
    d_parameters = feature_map.parameter_gradients(
        call.tensors,
        batch,
        query_sums,
        key_sums,
        state,
        d_state if sums_state else None,
        keys,
        product_precision(call.k.dtype),
    )
    return dq, dk, dv, d_position, *d_parameters


def compute_state(call: Call) -> Tensor:
    """Compute the state of all heads (E1, E2)."""
    _, keys, heads, dim = call.k.shape
    plan = call.plan('state', call.k)
    rows, chunks = plan.grid
    parts = floats(call.k, rows, chunks, state_size(call.kind, dim))
    bits = (keys - 1).bit_length()
    plan.launch(
        **call.tensors,
        **token_arguments('k', call.k),
        **token_arguments('v', call.v),
        p_state=parts,
        heads=heads,
        keys=keys,
        # 1 / M = 2^-bits * grow, of (E1) and (E2)
        log2_shrink=-float(bits),
        shrink=2.0**-bits,
        grow=2.0**bits / keys,
    )
    return combine(parts, dim)


def compute_output(call: Call, state: Tensor) -> Tensor:
    """Compute o [B, N, H, D] (E3), contiguous, in q's dtype."""
    _, queries, heads, _ = call.q.shape
    output = like(call.q)
    call.plan('output', call.q).launch(
        **call.tensors,
        **token_arguments('q', call.q),
        p_state=state,
        p_o=output,
        heads=heads,
        queries=queries,
        eps=call.eps,
    )
    return output


def compute_query_gradient(
    call: Call, do: Tensor, state: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dq, and each chunk's parts of the gradients of state and parameters (E15, E16, E18).

    Returns:
        dq; the parts of the state's gradient divided by M [B * H, chunks, 2D * (D + 1)];
        the parts of the sums for the parameters [B * H, chunks, numbers]. None where they are not
        wanted.
    """
    wants_dq, wants_state, wants_sums = wanted
    _, queries, heads, dim = call.q.shape
    plan = call.plan('query_gradient', call.q)
    dq = like(call.q) if wants_dq else None
    d_state = floats(call.q, *plan.grid, gradient_size(dim)) if wants_state else None
    sums_size = MAP_MODULES[call.kind].SUMS_PER_CHANNEL * dim
    sums = floats(call.q, *plan.grid, sums_size) if wants_sums else None
    plan.launch(
        **call.tensors,
        **token_arguments('q', call.q),
        **token_arguments('do', do),
        p_state=state,
        p_dq=dq,
        p_dstate=d_state,
        p_dexponent=sums,
        p_dtemperatures=sums,
        heads=heads,
        queries=queries,
        inverse_keys=1 / call.k.shape[1],
        eps=call.eps,
    )
    return dq, d_state, sums


def compute_key_gradient(
    call: Call, state: Tensor, d_state: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dk, dv and each chunk's parts [B * H, chunks, D] of the sums for the exponent.

    The state's gradient is divided by M (E17). None where a result is not wanted.
    """
    wants_dk, wants_dv, wants_sums = wanted
    _, keys, heads, dim = call.k.shape
    plan = call.plan('key_gradient', call.k)
    dk = like(call.k) if wants_dk else None
    dv = like(call.v) if wants_dv else None
    sums = floats(call.k, *plan.grid, dim) if wants_sums else None
    plan.launch(
        **call.tensors,
        **token_arguments('k', call.k),
        **token_arguments('v', call.v),
        p_state=state,
        p_dstate=d_state,
        p_dk=dk,
        p_dv=dv,
        p_dexponent=sums,
        heads=heads,
        keys=keys,
    )
    return dk, dv, sums


def combine(parts: Tensor, dim: int) -> Tensor:
    """Add the parts [B * H, chunks, SIZE] of a state or of its gradient."""
    rows, chunks, size = parts.shape
    if chunks == 1:
        return parts.flatten(0, 1)
    combined = floats(parts, rows, size)
    if rows == 0:
        return combined
    # 8 rows of the states of 8 chunks at a time
    combine_states_kernel[rows, (dim + 3) // 4](
        parts,
        combined,
        chunks,
        D=dim,
        BP=8,
        BR=8,
        BD=block_of(dim),
        HAS_SHIFT=size > gradient_size(dim),
        num_warps=4,
        **FUSION_OPTIONS,
    )
    return combined


def state_size(kind: str, dim: int) -> int:
    """Return SIZE, the length of a row of the state."""
    shift = 2 * dim if MAP_MODULES[kind].HAS_SHIFT else 0
    return gradient_size(dim) + shift


def gradient_size(dim: int) -> int:
    """Return the length of a row of the state's gradient: S and k̄."""
    return 2 * dim * (dim + 1)


def like(x: Tensor) -> Tensor:
    """Allocate a contiguous tensor of x's shape."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def floats(x: Tensor, *shape: int) -> Tensor:
    """Allocate float32 memory on the device of x."""
    return x.new_empty(shape, dtype=torch.float32)
