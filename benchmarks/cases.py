"""The measured shapes: token maps of the linear stages of real backbones at common training and
test sizes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One attention call: q, k, v [batch, rows * columns, heads, dim]."""

    name: str
    feature_map: str
    batch: int
    rows: int
    columns: int
    heads: int
    dim: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    @property
    def elements(self) -> int:
        """Number of elements of one token tensor."""
        return self.batch * self.tokens * self.heads * self.dim


MODELS = {
    'Pola-Swin-T': ('power', [(3, 32), (6, 32)]),
    'Pola-PVT-T': ('power', [(1, 64), (2, 64), (5, 64), (8, 64)]),
    'PolaFormer++ b2': ('exp', [(1, 64), (2, 64)]),
}
"""Backbone -> 'power' with a key position or 'exp' with rotary tables; heads and their channels by
linear stage.
"""

BATCHES = {
    'cuda': {(224, 224): 64, (384, 384): 32, (512, 512): 16, (800, 1333): 2},
    'cpu': {(224, 224): 8, (512, 512): 2, (800, 1333): 1},
}
"""Batch size by image size."""


def _cases(device: str) -> list[Case]:
    found = []
    for model, (feature_map, stages) in MODELS.items():
        for (height, width), batch in BATCHES[device].items():
            for stage, size in enumerate(stages, 1):
                stride = 2 ** (stage + 1)
                name = f'{model} stage {stage}, {height}x{width}, batch {batch}'
                found.append(
                    Case(name, feature_map, batch, -(-height // stride), -(-width // stride), *size)
                )
    return found


ATTENTION = {device: _cases(device) for device in BATCHES}
MIX_AND_GATE = {
    device: [case for case in cases if case.feature_map == 'power']
    for device, cases in ATTENTION.items()
}
"""PolaFormer++ computes the same, with a convolution kernel for every head instead of a shared
one.
"""

SCALING = [
    Case(f'{side}x{side} tokens', 'power', 1, side, side, heads=2, dim=32)
    for side in (56, 112, 224, 512)
]
"""One sequence of 3,136 to 262,144 tokens."""
