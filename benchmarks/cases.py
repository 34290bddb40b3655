"""The measured shapes: token maps of the linear stages of real backbones at common training and test sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Model(NamedTuple):
    """The linear stages of a backbone.

    Args:
        feature_map: 'power' with a key position, or 'exp' with rotary tables.
        heads: per stage.
        dims: of a head, per stage.
    """

    name: str
    feature_map: str
    heads: tuple[int, ...]
    dims: tuple[int, ...]


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
        """Of one token tensor."""
        return self.batch * self.tokens * self.heads * self.dim


def _cases(model: Model, batches: dict[str, int]) -> list[Case]:
    found = []
    for image, batch in batches.items():
        height, width = (int(side) for side in image.split('x'))
        for stage, (heads, dim) in enumerate(zip(model.heads, model.dims, strict=True)):
            stride = 4 * 2**stage
            name = f'{model.name} stage {stage + 1}, {image}, batch {batch}'
            grid = -(-height // stride), -(-width // stride)
            found.append(Case(name, model.feature_map, batch, *grid, heads, dim))
    return found


SWIN_T = Model('Pola-Swin-T', 'power', (3, 6), (32, 32))
PVT_T = Model('Pola-PVT-T', 'power', (1, 2, 5, 8), (64, 64, 64, 64))
PP_B2 = Model('PolaFormer++ b2', 'exp', (1, 2), (64, 64))

BATCHES = {
    'cuda': {'224x224': 64, '384x384': 32, '512x512': 16, '800x1333': 2},
    'cpu': {'224x224': 8, '512x512': 2, '800x1333': 1},
}

ATTENTION = {
    device: [case for model in (SWIN_T, PVT_T, PP_B2) for case in _cases(model, batches)]
    for device, batches in BATCHES.items()
}
MIX_AND_GATE = {device: [case for case in cases if case.feature_map == 'power'] for device, cases in ATTENTION.items()}
"""PolaFormer++ computes the same, with a convolution kernel for every head instead of a shared one."""

SCALING = [Case(f'{side}x{side} tokens', 'power', 1, side, side, heads=2, dim=32) for side in (56, 112, 224, 512)]
"""One sequence of 3,136 to 262,144 tokens."""
