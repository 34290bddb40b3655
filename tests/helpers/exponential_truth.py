"""E9 and E10 as printed, without a shift, in float64 (exp up to 709): exact results for large queries and keys."""

import torch


def exponential_attention(q, k, v, same, opposite, rotary=None, eps=1e-6):
    """Compute o [B, N, H, D] in float64, differentiable."""
    numerators, normalisers = _stream_sums(q, k, v, same, opposite, rotary, _rotate)
    return torch.cat(
        [n / (r + eps) for n, r in zip(numerators, normalisers, strict=True)], dim=-1
    ).transpose(1, 2)


def magnitude_of_terms(q, k, v, same, opposite, rotary, eps=1e-6):
    """Compute |o| as if no terms of the numerator cancelled [B, N, H, D]; errors are measured relative to it."""
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
