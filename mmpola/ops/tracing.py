"""Who is watching a call: compilers, exporters, torch.func or dispatch modes, for which only PyTorch operators do."""

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether a compiler or an exporter is recording the operations."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_recorded() -> bool:
    """Whether a compiler, an exporter or torch.func (vmap, grad, jvp) must see every operation of PyTorch."""
    return is_traced() or torch._C._are_functorch_transforms_active()


def is_compiled() -> bool:
    """Whether torch.compile is recording the operations."""
    return torch.compiler.is_compiling() and not is_exported()


def is_observed(x: Tensor) -> bool:
    """Whether a compiler, dispatch mode (FLOP counter), torch.func or tensor subclass must see operators of torch."""
    return is_recorded() or type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


def may_keep(x: Tensor) -> bool:
    """Whether constant tensors that a call on x makes may be kept for later calls.

    Not those that something records: `is_observed`, or a CUDA graph, which would read their memory
    after they are gone.
    """
    return not is_observed(x) and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """Return the CUDA stream that work on x is in order with, for the key of what is kept; None on other devices."""
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def is_exported() -> bool:
    """Whether torch.export is recording the operations, by itself or for ONNX; False in torch < 2.7.

    Reads the flag behind `torch.compiler.is_exporting`, which torch.compile replaces by True.
    """
    return getattr(torch.compiler, '_is_exporting_flag', False)
