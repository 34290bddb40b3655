"""Calls of the operators on random inputs that checks, tuning and worker processes can name, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmpola.ops.chunked import polarity_attention_chunked
from mmpola.ops.comparison import (
    Problem,
    attention_problem,
    mix_and_gate_problem,
    outputs_and_gradients,
    relative_errors,
)
from mmpola.ops.numerics import BACKEND_EXCESS
from mmpola.ops.reference import mix_and_gate_reference
from mmpola.ops.triton.backend import mix_and_gate_triton, polarity_attention_triton


class Functions(NamedTuple):
    """How the problems of an operator are drawn, and two ways to compute it."""

    draw: Callable[..., Problem]
    kernels: Callable[[Any], Tensor]
    reference: Callable[[Any], Tensor]


FUNCTIONS = {
    'polarity_attention': Functions(attention_problem, polarity_attention_triton, polarity_attention_chunked),
    'mix_and_gate': Functions(mix_and_gate_problem, mix_and_gate_triton, mix_and_gate_reference),
}
"""By operator."""

LENGTH = 64
"""Largest length of a shortened call."""


@dataclass(frozen=True)
class Call:
    """A call of an operator.

    Args:
        operator: of `FUNCTIONS`.
        dtype: of the tokens.
        dim: D.
        arguments: further arguments of `attention_problem` or `mix_and_gate_problem`.
        tf32: whether torch's switch for tf32 products of float32 is on.
    """

    operator: str
    dtype: torch.dtype
    dim: int
    arguments: Mapping[str, Any]
    tf32: bool = False

    def shortened(self) -> Call:
        """Return the call that compiles the same kernels on one short sample."""
        shorter: dict[str, Any] = {'batch': 1}
        if self.operator == 'mix_and_gate':
            shorter['grid'] = tuple(min(8, n) for n in self.arguments['grid'])
        else:
            shorter |= {name: min(LENGTH, self.arguments[name]) for name in ('queries', 'keys')}
        return replace(self, arguments={**self.arguments, **shorter})

    def problem(self, device: torch.device) -> Problem:
        """Draw the call's tensors; those of equal shape are views of one tensor, as a linear layer returns them."""
        problem = FUNCTIONS[self.operator].draw(device, self.dtype, self.dim, **self.arguments)
        names = ('q', 'k', 'v') if self.operator == 'polarity_attention' else ('attended', 'values')
        tensors = [x for name in names if (x := problem.tensors[name]) is not None]
        if len({x.shape for x in tensors}) > 1:
            return problem
        views = dict(zip(names, torch.stack(tensors, dim=2).unbind(2), strict=True))
        return replace(problem, tensors={**problem.tensors, **views})

    def run(self, problem: Problem) -> dict[str, Tensor]:
        """Return the kernels' output and gradients."""
        with products_in_tf32(self.tf32):
            return outputs_and_gradients(FUNCTIONS[self.operator].kernels, problem)

    def budgets(self, problem: Problem, found: dict[str, Tensor]) -> dict[str, float]:
        """Return by how much the error of each result exceeds the reference's, in units of BACKEND_EXCESS.

        Up to 1 is within the budget. NaN in a result gives NaN.
        """
        reference = FUNCTIONS[self.operator].reference
        exact = outputs_and_gradients(reference, problem, torch.float64)
        with products_in_tf32(self.tf32):
            same_dtype = relative_errors(outputs_and_gradients(reference, problem), exact)
        output, gradient = BACKEND_EXCESS[torch.float16 if self.tf32 else self.dtype]
        return {
            name: (error - same_dtype[name]) / (output if name == 'output' else gradient)
            for name, error in relative_errors(found, exact).items()
        }


@contextmanager
def products_in_tf32(enabled: bool) -> Iterator[None]:
    """Set torch's switch for tf32 products of float32 matrices."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        matmul.allow_tf32 = before
