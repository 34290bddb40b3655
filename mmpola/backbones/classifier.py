"""The classification network: a backbone's last map to logits. Plain torch; names as in the authors' weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaPVTv2, PolaSwin
from mmpola.backbones.base import Backbone
from mmpola.checkpoint.weights import Loadable
from mmpola.layers import Grid

HEAD_PREFIXES = ('norm.', 'proj.', 'head.')
"""What the authors' files call a head's tensors; everything else in them is the backbone's."""


class HeadSpec(NamedTuple):
    """What stands between a backbone's last map and the average over its tokens."""

    out_norm: bool = False  # the backbone's own last norm
    norm_eps: float | None = None  # a LayerNorm of this epsilon
    projection: bool = False  # 1x1 convolution, BatchNorm and SiLU


HEADS: dict[type[Backbone], HeadSpec] = {
    PolaPVT: HeadSpec(),
    PolaPVTv2: HeadSpec(out_norm=True),
    PolaSwin: HeadSpec(norm_eps=1e-5),
    PolaDeiT: HeadSpec(norm_eps=1e-6),
    PolaFormerPP: HeadSpec(projection=True),
}


def head_spec(backbone: Any) -> HeadSpec:
    """The head that a class of backbones was published with.

    Raises:
        ValueError: it is none of `HEADS`, nor a subclass of one.
    """
    for cls, spec in HEADS.items():
        if isinstance(backbone, type) and issubclass(backbone, cls):
            return spec
    known = ', '.join(cls.__name__ for cls in HEADS)
    raise ValueError(f'backbone: expected one of {known}, got {getattr(backbone, "__name__", backbone)}')


class OnBackbone(Loadable):
    """A model whose backbone is its attribute `backbone`; files may name the backbone's tensors with or without it."""

    backbone: Backbone

    def own_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if any(key.startswith('backbone.') for key in weights):
            return weights
        return {key if key.startswith(HEAD_PREFIXES) else f'backbone.{key}': x for key, x in weights.items()}

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        return tuple(f'backbone.{prefix}' for prefix in self.backbone.unbuilt_prefixes())

    def fresh_prefixes(self) -> tuple[str, ...]:
        return tuple(f'backbone.{prefix}' for prefix in self.backbone.fresh_prefixes())

    def position_tables(self) -> dict[str, Grid]:
        return {f'backbone.{name}': grid for name, grid in self.backbone.position_tables().items()}


class Classifier(OnBackbone):
    """Logits from the last map of a backbone, through the head that it was published with.

    PolaPVT and PolaPVTv2: mean, linear `head`. PolaSwin and PolaDeiT: LayerNorm `norm`, mean, linear `head`.
    PolaFormerPP: 1x1 convolution `proj`, BatchNorm `norm`, SiLU, mean, 1x1 convolution `head`.

    Args:
        backbone: its class.
        num_classes: length of the logits; 0 for the pooled features instead.
        projection: channels of `proj`; None: 2,048, or four times the backbone's where that is more (b5: 2,560).
        arguments: of the backbone, without `out_norm`, which follows from the head.
        base: of the next class in the method resolution order, where there is one.

    Raises:
        ValueError: an argument breaks its rule; the message names it.
    """

    def __init__(
        self,
        backbone: type[Backbone],
        num_classes: int,
        *,
        projection: int | None = None,
        arguments: dict[str, Any] | None = None,
        **base: Any,
    ) -> None:
        spec = head_spec(backbone)
        arguments = {'out_norm': spec.out_norm, **(arguments or {})}
        if arguments['out_norm'] != spec.out_norm:
            raise ValueError(
                f'backbone: in a classifier the head decides on out_norm ({spec.out_norm} for {backbone.__name__}), '
                f'got {arguments["out_norm"]}'
            )
        if projection is not None and not spec.projection:
            raise ValueError(f'projection: expected None, {backbone.__name__} has none, got {projection}')
        super().__init__(**base)
        self.backbone = backbone(**arguments)
        self.backbone.out_indices = self.backbone.out_indices[-1:]  # no other map is read
        channels = self.backbone.embed_dims[self.backbone.out_indices[0]]
        self.norm: nn.Module = nn.Identity() if spec.norm_eps is None else nn.LayerNorm(channels, eps=spec.norm_eps)
        self.proj: nn.Conv2d | None = None
        if spec.projection:
            self.num_features = projection or max(2048, 4 * channels)
            self.proj = nn.Conv2d(channels, self.num_features, 1)
            self.norm = nn.BatchNorm2d(self.num_features)
        else:
            self.num_features = channels
        self.add_head(num_classes)

    def add_head(self, num_classes: int) -> None:
        """A new last layer."""
        self.num_classes = num_classes
        self.head: nn.Module
        if num_classes == 0:
            self.head = nn.Identity()
        elif self.proj is not None:
            self.head = nn.Conv2d(self.num_features, num_classes, 1)
        else:
            self.head = nn.Linear(self.num_features, num_classes)
            trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [B, in_channels, H, W] -> the backbone's last map [B, C, h, w]."""
        return self.backbone(images)[-1]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The last map [B, C, h, w] -> logits [B, num_classes]; with `pre_logits` the features [B, F] under them."""
        if self.proj is not None:
            pooled = F.silu(self.norm(self.proj(x))).mean((2, 3), keepdim=True)
        else:
            pooled = self.norm(x.flatten(2).transpose(1, 2)).mean(1)
        return (pooled if pre_logits else self.head(pooled)).flatten(1)

    def forward(self, images: Tensor) -> Any:
        """Images [B, in_channels, H, W] -> logits [B, num_classes]."""
        return self.forward_head(self.forward_features(images))
