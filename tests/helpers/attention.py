"""The operator's random arguments, its results with any backend, and exact results."""

import os

import torch

from mmpola.ops import ExpMap, PowerMap, polarity_attention

MAPS = ('power', 'power without scale', 'exp')


def draw(batch=2, queries=5, keys=7, heads=3, dim=4, dtype=torch.float64, std=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, queries, heads, dim), (batch, keys, heads, dim), (batch, keys, heads, dim)]
    return [
        (std * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)
        for shape in shapes
    ]


def make_map(kind, heads=3, dim=4, dtype=torch.float64):
    if kind == 'exp':
        return ExpMap(
            torch.rand(heads, 2 * dim, dtype=dtype), torch.rand(heads, 2 * dim, dtype=dtype)
        )
    scale = 0.5 + torch.rand(heads, dim, dtype=dtype) if kind == 'power' else None
    return PowerMap(1 + 4 * torch.rand(heads, dim, dtype=dtype), scale)


def rotary_tables(tokens, dim):
    angle = torch.rand(tokens, dim, dtype=torch.float64).repeat_interleave(
        2, dim=-1
    )  # one angle for each pair
    return angle.cos(), angle.sin()


DEVICE = 'cpu' if os.environ.get('TRITON_INTERPRET') == '1' else 'cuda'
LEAVES = ('q', 'k', 'v', 'key_position', 'parameter', 'other parameter')


def draw_leaves(
    dim, queries, keys, kind, dtype=torch.float32, position=True, batch=2, heads=2, std=1.0
):
    """Draw q, k, v [B, N, H, D] of `dtype`, and the key position and the map's two parameters.

    The last three are in float32, or None.
    """
    tokens = [(std * torch.randn(batch, n, heads, dim)).to(dtype) for n in (queries, keys, keys)]
    parameters = [
        1 + 4 * torch.rand(heads, dim),
        0.5 + torch.rand(heads, dim) if kind == 'power' else None,
    ]
    if kind == 'exp':
        parameters = [torch.rand(heads, 2 * dim), torch.rand(heads, 2 * dim)]
    tensors = [*tokens, torch.randn(keys, heads, dim) if position else None, *parameters]
    return [None if x is None else x.to(DEVICE) for x in tensors]


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


def exponential_attention(q, k, v, same, opposite, rotary=None, eps=1e-6):
    """Compute o [B, N, H, D] in float64, differentiable."""
    numerators, normalisers = _stream_sums(q, k, v, same, opposite, rotary, _rotate)
    return torch.cat(
        [n / (r + eps) for n, r in zip(numerators, normalisers, strict=True)], dim=-1
    ).transpose(1, 2)


def magnitude_of_terms(q, k, v, same, opposite, rotary, eps=1e-6):
    """Compute |o| [B, N, H, D] as if no terms of the numerator cancelled, to measure errors by."""
    numerators, normalisers = _stream_sums(
        q, k, v.abs(), same, opposite, [x.abs() for x in rotary], _rotate_magnitudes
    )
    return torch.cat(
        [n / (r + eps) for n, r in zip(numerators, normalisers, strict=True)], dim=-1
    ).transpose(1, 2)


def _stream_sums(q, k, v, same, opposite, rotary, rotate):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    same, opposite = (x.double().unsqueeze(-2) for x in (same, opposite))
    psi = torch.cat([k.relu(), (-k).relu()], dim=-1).expm1()
    phis = [
        (torch.cat([q.relu(), (-q).relu()], dim=-1) * same).expm1(),
        (torch.cat([(-q).relu(), q.relu()], dim=-1) * opposite).expm1(),
    ]
    normalisers = [phi @ psi.mean(-2).unsqueeze(-1) for phi in phis]
    if rotary is not None:
        psi, *phis = (rotate(x, *(table.double() for table in rotary)) for x in (psi, *phis))
    numerators = [
        phi @ (psi.mT @ half / k.shape[-2])
        for phi, half in zip(phis, v.chunk(2, dim=-1), strict=True)
    ]
    return numerators, normalisers


def _rotate(x, cos, sin):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin


def _rotate_magnitudes(x, cos, sin):
    return x * cos + x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) * sin
