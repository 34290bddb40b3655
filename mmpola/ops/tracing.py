"""Whether something records the operations of a call, and the key by which tensors are cached."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_traced() -> bool:
    """Whether a compiler or an exporter is recording."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_recorded() -> bool:
    """Whether a compiler, an exporter, a functorch transform or forward-mode AD is recording."""
    return is_traced() or torch._C._are_functorch_transforms_active() or is_forward_mode()


def is_forward_mode() -> bool:
    """Whether a call may have tangents: it is inside `torch.autograd.forward_ad.dual_level`."""
    return forward_ad._current_level >= 0


def is_batched(x: Tensor) -> bool:
    """Whether vmap has hidden a dimension of x, as in `torch.autograd.grad(is_grads_batched=True)`.

    Autograd's own batching is none of the functorch transforms.
    """
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x)


def is_observed(x: Tensor) -> bool:
    """Whether a recorder, a dispatch mode (FLOP counter) or a tensor subclass sees operations."""
    return is_recorded() or type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0


CacheKey = tuple[torch.device, torch.cuda.Stream | None]


def cache_key(x: Tensor) -> CacheKey | None:
    """Return what the key of a cache of constant tensors for x must contain, or None.

    The key has x's device and, on a GPU, the current stream: tensors made on one stream may not be
    ready on another. None if a call on x may neither cache tensors nor read cached ones: while
    something sees the operations (`is_observed`), and in a CUDA graph, because the cache may have
    freed a tensor by the time the graph runs.
    """
    if is_observed(x):
        return None
    if not x.is_cuda:
        return x.device, None
    if torch.cuda.is_current_stream_capturing():
        return None
    return x.device, torch.cuda.current_stream(x.device)
