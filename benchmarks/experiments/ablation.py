"""A Pola-PVT in which gate, mixing and polarity can each be left out, as in the paper's table 3."""

from __future__ import annotations

from typing import Any

from mmpola.backbones.pola_pvt import PolaPVT
from mmpola.papers.ablations.attention import AblatedPolaAttention
from mmpola.registry import MODELS


@MODELS.register_module()
class AblatedPVT(PolaPVT):
    """Pola-PVT with `AblatedPolaAttention`.

    Args:
        gate, mixing, polarity: see `AblatedPolaAttention`.
        arguments: of `PolaPVT`, for linear attention without reduction in all stages.
    """

    def __init__(
        self,
        *,
        gate: bool = True,
        mixing: str | None = 'dwc',
        polarity: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        alpha = arguments.get('alpha', 4)
        for stage, dim in zip(self.stages, self.embed_dims, strict=True):
            blocks: Any = stage.blocks
            for block in blocks:
                block.attn = AblatedPolaAttention(
                    dim,
                    block.attn.num_heads,
                    grid=block.attn.grid,
                    gate=gate,
                    mixing=mixing,
                    polarity=polarity,
                    alpha=alpha,
                )
