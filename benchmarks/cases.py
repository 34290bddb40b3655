"""The shapes that count: token maps of the first stages of real backbones at the sizes people train and test on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One attention call: q, k, v [batch, rows * columns, heads, dim]."""

    model: str
    stage: int
    image: str
    batch: int
    rows: int
    columns: int
    heads: int
    dim: int

    @property
    def name(self) -> str:
        return f'{self.model} stage {self.stage}, {self.image}, batch {self.batch}'

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


def _cases(model: str, heads: tuple[int, ...], dims: tuple[int, ...], batches: dict[str, int]) -> list[Case]:
    found = []
    for image, batch in batches.items():
        height, width = (int(side) for side in image.split('x'))
        for stage, (count, dim) in enumerate(zip(heads, dims, strict=True)):
            stride = 4 * 2**stage
            found.append(Case(model, stage + 1, image, batch, -(-height // stride), -(-width // stride), count, dim))
    return found


SWIN_T, PVT_T = ('Pola-Swin-T', (3, 6), (32, 32)), ('Pola-PVT-T', (1, 2, 5, 8), (64, 64, 64, 64))

ON_GPU = {'224x224': 64, '384x384': 32, '512x512': 16, '800x1333': 2}
ON_CPU = {'224x224': 8, '512x512': 2, '800x1333': 1}

ATTENTION = {
    device: [case for model in (SWIN_T, PVT_T) for case in _cases(*model, batches)]
    for device, batches in (('cuda', ON_GPU), ('cpu', ON_CPU))
}
