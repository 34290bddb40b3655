"""The operator's output and gradients with any backend, for comparing the kernels with the reference."""

import os

import torch

from mmpola.ops import ExpMap, PowerMap, polarity_attention

DEVICE = 'cpu' if os.environ.get('TRITON_INTERPRET') == '1' else 'cuda'
LEAVES = ('q', 'k', 'v', 'key_position', 'parameter', 'other parameter')


def draw_leaves(
    dim, queries, keys, kind, dtype=torch.float32, position=True, batch=2, heads=2, std=1.0
):
    """Draw q, k, v [B, N, H, D] of `dtype`, and key position and the map's two parameters in float32 or None."""
    tokens = [(std * torch.randn(batch, n, heads, dim)).to(dtype) for n in (queries, keys, keys)]
    parameters = [
        1 + 4 * torch.rand(heads, dim),
        0.5 + torch.rand(heads, dim) if kind == 'power' else None,
    ]
    if kind == 'exp':
        parameters = [torch.rand(heads, 2 * dim), torch.rand(heads, 2 * dim)]
    tensors = [*tokens, torch.randn(keys, heads, dim) if position else None, *parameters]
    return [None if x is None else x.to(DEVICE) for x in tensors]


def draw_rotary(tokens, dim):
    """Draw cos and sin [N, 2D] in float32."""
    angle = torch.rand(tokens, dim, device=DEVICE).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def attend(leaves, kind, rotary=None, backend='triton', **kwargs):
    """Compute the output for the tensors of LEAVES."""
    q, k, v, position, *parameters = leaves
    feature_map = ExpMap(*parameters) if kind == 'exp' else PowerMap(*parameters)
    return polarity_attention(
        q, k, v, feature_map, key_position=position, rotary=rotary, backend=backend, **kwargs
    )


def results(leaves, kind, grad, rotary=None, backend='triton', dtype=None, wanted=LEAVES):
    """Compute the output and the gradient of each tensor of LEAVES that exists and is wanted."""
    leaves = [None if x is None else x.detach().to(dtype or x.dtype) for x in leaves]
    asked = {
        name: x.requires_grad_()
        for name, x in zip(LEAVES, leaves, strict=True)
        if x is not None and name in wanted
    }
    rotary = None if rotary is None else tuple(x.to(dtype or x.dtype) for x in rotary)
    output = attend(leaves, kind, rotary, backend)
    gradients = torch.autograd.grad(output, [*asked.values()], grad.to(output))
    return {'o': output.detach(), **dict(zip(asked, gradients, strict=True))}
