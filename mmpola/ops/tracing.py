"""Who is recording the operations of a call, and whether a call may keep tensors for the next."""

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether a compiler or an exporter is recording."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_recorded() -> bool:
    """Whether a compiler, an exporter or a functorch transform (vmap, grad, jvp) is recording."""
    return is_traced() or torch._C._are_functorch_transforms_active()


def is_observed(x: Tensor) -> bool:
    """Whether something records, or x is of a dispatch mode (FLOP counter) or tensor subclass."""
    return is_recorded() or type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


def is_exported() -> bool:
    """Whether torch.export is recording, by itself or for ONNX; False in torch < 2.7.

    Reads the flag behind `torch.compiler.is_exporting`, which torch.compile replaces by True.
    """
    return getattr(torch.compiler, '_is_exporting_flag', False)


def is_compiled() -> bool:
    """Whether torch.compile is recording."""
    return torch.compiler.is_compiling() and not is_exported()


def may_keep(x: Tensor) -> bool:
    """Whether constant tensors that a call on x makes may be kept for later calls.

    Not while something records (`is_observed`). Nor may a CUDA graph read kept tensors: their
    memory may be gone when it runs.
    """
    if is_observed(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """Return the CUDA stream that work on x is in order with; None on other devices.

    It is part of the key under which tensors are kept.
    """
    if x.is_cuda:
        return torch.cuda.current_stream(x.device)
    return None
