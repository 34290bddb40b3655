"""Compare the kernels with float64, and time them, on one GPU: the child process of gate.py.

python -m mmpola.kernels.check cuda:0 check|time CASES
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mmpola.kernels.children import Row, serve
from mmpola.kernels.record import PADDED_HEAD_DIM, Case
from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.exp_map import ExpMap
from mmpola.ops.inputs import AttentionInputs, FeatureMap, MixAndGateInputs, Rotary
from mmpola.ops.numerics import BACKEND_EXCESS, default_eps
from mmpola.ops.power_map import PowerMap
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton import mix_and_gate_triton, polarity_attention_triton

Arguments = dict[str, Any]

MARGIN = 20
"""Allowed multiple of BACKEND_EXCESS, which was measured without a GPU's exp2 and log2."""

LONGEST_CASE = 300
"""Seconds after which a case ends its process; it may share its core with others."""

DTYPES = {
    'float16': (torch.float16, False),
    'bfloat16': (torch.bfloat16, False),
    'float32': (torch.float32, False),
    'float32 in tf32': (torch.float32, True),
}
"""Name in the record -> dtype of the tokens, and whether torch's tf32 switch is on."""

HEAD_DIMS = (16, 32, 64, PADDED_HEAD_DIM)

# Enough tokens that several programs share a head, and enough heads that each program loops over
# several blocks, the last one partly filled.
POWER: Arguments = {'feature_map': 'PowerMap', 'batch': 8, 'heads': 2}
EXP: Arguments = {'feature_map': 'ExpMap', 'batch': 8, 'heads': 2, 'position_dtype': None}
ODD = {'queries': 1021, 'keys': 577}
SQUARE = {'queries': 1100, 'keys': 1100}
MAP = {'batch': 2, 'heads': 2, 'grid': (25, 42), 'window': (5, 5)}
SEQUENCE = {'batch': 2, 'heads': 2, 'grid': (1, 1021), 'window': (1, 5)}
CHECKED: dict[str, list[Arguments]] = {
    'power': [{**POWER, **ODD}, {**POWER, **SQUARE, 'has_scale': False, 'position_dtype': None}],
    'exp': [{**EXP, **ODD}, {**EXP, **SQUARE, 'position_dtype': torch.float32}],
    'rotary': [{**EXP, **SQUARE, 'has_rotary': True}],
    'mix_and_gate': [{**MAP, 'is_shared': True}, {**SEQUENCE, 'is_shared': False}],
}
"""Operator -> arguments of the problems that are compared with float64: with the optional tensors
and without them."""

TIMED: dict[int, Arguments] = {
    784: {'batch': 32, 'queries': 784, 'keys': 784, 'grid': (28, 28)},
    16700: {'batch': 2, 'queries': 16700, 'keys': 16700, 'grid': (100, 167)},
}
"""Tokens of the timed problems -> their sizes; 16,700: stage 2 of an image of 800 x 1333."""

TIMED_CHANNELS = 256


def all_cases() -> list[Case]:
    """List the cases of a complete record; what compiles longest comes first."""
    cases = []
    for head_dim, operator, dtype in product(sorted(HEAD_DIMS, reverse=True), CHECKED, DTYPES):
        # mix_and_gate multiplies no matrices: the switch does not concern it
        if operator != 'mix_and_gate' or dtype != 'float32 in tf32':
            cases.append(Case(operator, head_dim, dtype))
    return cases


# ---- Problems

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
        kernels, plain: the operator with kernels, and in plain PyTorch.
    """

    tensors: dict[str, Tensor | None]
    build: Callable[..., Any]
    output_grad: Tensor
    kernels: Callable[[Any], Tensor]
    plain: Callable[[Any], Tensor]


def draw(device: torch.device, dtype: torch.dtype, dim: int, arguments: Arguments) -> Problem:
    """Draw a problem of `mix_and_gate` if there is a 'window', else of `polarity_attention`."""
    if 'window' in arguments:
        return mix_and_gate_problem(device, dtype, dim, **arguments)
    return attention_problem(device, dtype, dim, **arguments)


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
    return Problem(
        tensors, build, output_grad, polarity_attention_triton, polarity_attention_chunked
    )


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
    has_bias: bool = True,
) -> Problem:
    """Draw the tensors of `mix_and_gate`; always the same ones for the same arguments.

    Args:
        window: height and width of the convolution kernel.
        is_shared: whether all heads share it.
    """
    tokens = grid[0] * grid[1]
    height, width = window
    channels = dim if is_shared else heads * dim
    weight = _normal(device, torch.float32, channels, 1, height, width, seed=3)
    bias = None
    if has_bias:
        bias = _normal(device, torch.float32, channels, seed=4)
    tensors = {
        'attended': _normal(device, dtype, batch, tokens, heads, dim, seed=0),
        'values': _normal(device, dtype, batch, tokens, heads, dim, seed=1),
        'gate': _normal(device, dtype, batch, tokens, heads * dim, seed=2),
        'weight': weight / width,
        'bias': bias,
    }

    build = partial(MixAndGateInputs, grid=grid)
    output_grad = _normal(device, torch.bfloat16, batch, tokens, heads * dim, seed=7).to(dtype)
    return Problem(tensors, build, output_grad, mix_and_gate_triton, mix_and_gate_reference)


def _normal(
    device: torch.device, dtype: torch.dtype, *shape: int, seed: int, std: float = 1.0
) -> Tensor:
    """Draw normal numbers on the device; the global generator stays as it is."""
    generator = torch.Generator(device).manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device=device)
    return (std * numbers).to(dtype)


# ---- Comparison


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


def check(
    device: torch.device, dtype_name: str, dim: int, arguments: Arguments, allowed: float
) -> Row:
    """Run the kernels twice and compare output and gradients with float64.

    The budget, BACKEND_EXCESS, is by how much an error may exceed the error of PyTorch's own
    operations in the same dtype. Memory is filled with NaN when the first run allocates it,
    so elements that a kernel does not write are noticed.

    Args:
        device: where the kernels run.
        dtype_name: of DTYPES.
        dim: D, channels of a head.
        arguments: of `attention_problem` or, with 'window', of `mix_and_gate_problem`.
        allowed: multiple of the budget that passes.

    Returns:
        'worst result', its 'error over budget', and 'failure': '' or what is wrong.
    """
    dtype, tf32 = DTYPES[dtype_name]
    problem = draw(device, dtype, dim, arguments)
    switch = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.use_deterministic_algorithms(True, warn_only=True)  # this also fills new memory
    try:
        found = outputs_and_gradients(problem.kernels, problem)
        torch.use_deterministic_algorithms(False)
        again = outputs_and_gradients(problem.kernels, problem)
        exact = outputs_and_gradients(problem.plain, problem, torch.float64)
        plain_errors = relative_errors(outputs_and_gradients(problem.plain, problem), exact)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.allow_tf32 = switch
    output_budget, gradient_budget = BACKEND_EXCESS[torch.float16 if tf32 else dtype]
    over_budget = {}
    for name, error in relative_errors(found, exact).items():
        budget = output_budget if name == 'output' else gradient_budget
        over_budget[name] = (error - plain_errors[name]) / (allowed * budget)

    worst = max(over_budget, key=lambda name: (math.isnan(over_budget[name]), over_budget[name]))
    differing = [name for name, x in found.items() if not torch.equal(x, again[name])]
    failure = ''
    if not over_budget[worst] <= 1:  # also true for NaN
        failure = f'the error of the {worst} is {over_budget[worst]:.1f} times the budget'
    elif differing:
        failure = f'two runs differ in the {differing[0]}'
    return {'worst result': worst, 'error over budget': over_budget[worst], 'failure': failure}


# ---- The child process


def check_case(device: torch.device, case: Case) -> Row:
    """Check a case on all its problems, until the first failure."""
    for arguments in CHECKED[case.operator]:
        found = check(device, case.dtype, case.head_dim, arguments, MARGIN)
        if found['failure']:
            return {'failure': found['failure']}
    return {'failure': ''}


def time_case(device: torch.device, case: Case) -> Row:
    """Return by which factor a training step is faster with kernels, by the number of tokens."""
    dtype, torch.backends.cuda.matmul.allow_tf32 = DTYPES[case.dtype]
    arguments = CHECKED[case.operator][0]
    speedup = {}
    for tokens, sizes in TIMED.items():
        timed = {name: sizes.get(name, value) for name, value in arguments.items()}
        timed['heads'] = max(1, TIMED_CHANNELS // case.head_dim)
        problem = draw(device, dtype, case.head_dim, timed)
        kernels = partial(outputs_and_gradients, problem.kernels, problem)
        plain = partial(outputs_and_gradients, problem.plain, problem)
        factor = median_milliseconds(plain) / median_milliseconds(kernels)
        speedup[str(tokens)] = float(f'{factor:.3g}')
    return {'speedup': speedup}


def median_milliseconds(step: Callable[[], Any]) -> float:
    """Return the time that a step takes on a GPU."""
    from triton.testing import do_bench

    step()
    return float(do_bench(step, warmup=10, rep=40, return_mode='median'))


def main() -> None:
    _, name, task, jobs = sys.argv
    device = torch.device(name)
    run = {'check': check_case, 'time': time_case}[task]
    serve(
        lambda: torch.ones(1, device=device).item(),
        lambda job: run(device, Case(*job)),
        jobs,
        LONGEST_CASE,
    )


if __name__ == '__main__':
    main()
