"""Whether something records the operations of a call, and whether tensors may be cached."""

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether a compiler or an exporter is recording."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_recorded() -> bool:
    """Whether a compiler, an exporter or a functorch transform (vmap, grad, jvp) is recording."""
    return is_traced() or torch._C._are_functorch_transforms_active()


def is_observed(x: Tensor) -> bool:
    """Whether a recorder, a dispatch mode (FLOP counter) or a tensor subclass sees operations."""
    return is_recorded() or type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


def is_exported() -> bool:
    """Whether torch.export is recording, by itself or for ONNX; False in torch < 2.7.

    Reads the flag behind `torch.compiler.is_exporting`, since torch.compile replaces that by True.
    """
    return getattr(torch.compiler, '_is_exporting_flag', False)


def is_compiled() -> bool:
    """Whether torch.compile is recording."""
    return torch.compiler.is_compiling() and not is_exported()


def may_cache(x: Tensor) -> bool:
    """Whether a call on x may cache constant tensors and read cached ones.

    Not while something sees the operations (`is_observed`), and not in a CUDA graph: the cache may
    have freed a tensor by the time the graph runs.
    """
    if is_observed(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """Return the current CUDA stream of x's device; None on other devices.

    It belongs into the key of a cache: tensors made on one stream may not be ready on another.
    """
    if x.is_cuda:
        return torch.cuda.current_stream(x.device)
    return None
