"""Random arguments of the operator."""

import torch

from mmpola.ops import ExpMap, PowerMap

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
