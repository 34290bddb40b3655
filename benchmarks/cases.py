"""The measured shapes: token maps of real backbones' linear stages, at common image sizes."""

from __future__ import annotations

import math
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


LINEAR_STAGES = {
    'Pola-Swin-T': ('power', [(3, 32), (6, 32)]),
    'Pola-PVT-T': ('power', [(1, 64), (2, 64), (5, 64), (8, 64)]),
    'PolaFormer++ b2': ('exp', [(1, 64), (2, 64)]),
}
"""Backbone -> its feature map, and (heads, channels of a head) of each linear stage.

'power' is called with a key position, 'exp' with rotary tables.
"""

BATCHES = {
    'cuda': {(224, 224): 64, (384, 384): 32, (512, 512): 16, (800, 1333): 2},
    'cpu': {(224, 224): 8, (512, 512): 2, (800, 1333): 1},
}
"""Device -> batch size by image size."""


def attention_cases(device: str) -> list[Case]:
    """Return a case for each linear stage of each backbone at each image size."""
    cases = []
    for model, (feature_map, stages) in LINEAR_STAGES.items():
        for (height, width), batch in BATCHES[device].items():
            for stage, (heads, dim) in enumerate(stages, 1):
                stride = 2 ** (stage + 1)
                name = f'{model} stage {stage}, {height}x{width}, batch {batch}'
                rows = math.ceil(height / stride)
                columns = math.ceil(width / stride)
                cases.append(Case(name, feature_map, batch, rows, columns, heads, dim))
    return cases


ATTENTION = {'cuda': attention_cases('cuda'), 'cpu': attention_cases('cpu')}
