"""The pre-norm transformer block of Swin, PVT and DeiT, and the residual sum that blocks share."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn
from torch.autograd import Function

from mmpola.layers.initial_weights import draw_layer
from mmpola.layers.token_maps import Grid
from mmpola.layers.windows import Windows
from mmpola.ops.numerics import without_autocast
from mmpola.ops.tracing import is_batched, is_recorded


class TransformerBlock(nn.Module):
    """x += attn(norm1(x)); x += mlp(norm2(x)), each branch with stochastic depth.

    Args:
        attn: attention layer, called as attn(x, layout), see `forward`.
        dim: channels C.
        mlp_ratio: hidden channels of the MLP, as a multiple of C.
        norm_eps: epsilon of both LayerNorms.
        drop: dropout rate in the MLP.
        drop_path: stochastic depth rate of both branches.
    """

    def __init__(
        self,
        attn: nn.Module,
        dim: int,
        mlp_ratio: float,
        *,
        norm_eps: float,
        drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop)
        self.drop_path = DropPath(drop_path)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the MLP as the authors do; the attention layer has drawn its own weights."""
        draw_layer(self.mlp.fc1)
        draw_layer(self.mlp.fc2)

    def forward(self, x: Tensor, layout: Grid | Windows) -> Tensor:
        """Run the block.

        Args:
            x: tokens [B, N, C].
            layout: the token grid (h, w), N = h * w, or the windows that a `WindowAttention` needs.

        Returns:
            [B, N, C].
        """
        x = add_branch(x, self.attn(self.norm1(x), layout), self.drop_path)
        return add_branch(x, self.mlp(self.norm2(x)), self.drop_path)


def add_branch(
    x: Tensor, branch: Tensor, drop_path: DropPath, gamma: Tensor | None = None
) -> Tensor:
    """Compute x + drop_path(gamma * branch).

    In half precision, as under autocast, this is one pass over the tokens. In full precision it is
    a pass per operation, because a single pass rounds differently on a CPU.

    Args:
        x: tokens [B, N, C].
        branch: [B, N, C].
        drop_path: stochastic depth.
        gamma: layer scale [C]; None for none.

    Returns:
        [B, N, C] in the dtype that x, the branch and gamma have in common.
    """
    drops = drop_path.training and drop_path.drop_prob > 0
    only_adds = gamma is None and not drops
    if only_adds or branch.dtype.itemsize > 2 or is_recorded():
        if gamma is not None:
            branch = branch * gamma
        return x + drop_path(branch)
    kept = None
    if drops:  # the same mask as in timm's DropPath
        keep_rate = 1 - drop_path.drop_prob
        dtype = branch.dtype if gamma is None else gamma.dtype
        kept = torch.empty(len(branch), 1, 1, device=branch.device, dtype=dtype)
        kept.bernoulli_(keep_rate)
        if drop_path.scale_by_keep:
            kept.div_(keep_rate)
    return _AddBranch.apply(x, branch, gamma, kept)


class _AddBranch(Function):
    """x + branch * gamma * kept, for gamma [C] and `kept` [B, 1, 1]; one of the two may be None."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor, gamma: Tensor | None, kept: Tensor | None
    ) -> Tensor:
        scale = _scale(gamma, kept)
        ctx.save_for_backward(branch, gamma, kept, scale)
        with without_autocast(x.device):  # autocast would convert the branch in another pass
            return torch.addcmul(x, branch, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        branch, gamma, kept, scale = ctx.saved_tensors
        needs_x, needs_branch, needs_gamma, _ = ctx.needs_input_grad
        d_x = grad if needs_x else None
        d_branch = None
        if needs_branch:
            if torch.is_grad_enabled():
                scale = _scale(gamma, kept)  # for autograd the saved one is a constant
            if torch.is_grad_enabled() or is_batched(grad):
                d_branch = (grad * scale).to(branch.dtype)
            else:  # in one pass
                d_branch = torch.empty(grad.shape, device=grad.device, dtype=branch.dtype)
                torch.mul(grad, scale, out=d_branch)
        d_gamma = None
        if needs_gamma:
            by_sample = (grad * branch).sum(1)  # [B, C]
            if kept is None:
                weights = by_sample.new_ones(len(by_sample))
            else:
                weights = kept.flatten().to(by_sample.dtype)
            d_gamma = by_sample.T @ weights
        return d_x, d_branch, d_gamma, None


def _scale(gamma: Tensor | None, kept: Tensor | None) -> Tensor:
    """Compute the factor of the branch, gamma * kept, where None is 1."""
    if gamma is None:
        assert kept is not None
        return kept
    if kept is None:
        return gamma
    return gamma * kept
