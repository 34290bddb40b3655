"""The classification network: a backbone and the head it was published with, in plain PyTorch.

The heads name their parameters as the released weights do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mmpola import backbones
from mmpola.backbones.base import Backbone
from mmpola.checkpoint.load import RenamesWeights
from mmpola.layers import Grid, draw_layer
from mmpola.messages import listed

HEAD_PREFIXES = ('norm.', 'proj.', 'head.')
"""Prefixes of a head's tensors in the authors' files; all others are the backbone's."""


def head_layer(features: int, num_classes: int, *, convolution: bool) -> nn.Module:
    """Build the last layer, a 1x1 convolution or a linear layer; nn.Identity for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    head: nn.Conv2d | nn.Linear
    if convolution:
        head = nn.Conv2d(features, num_classes, 1)
    else:
        head = nn.Linear(features, num_classes)
    draw_layer(head)
    return head


def split_head(weights: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a file's tensors into the backbone's, without the prefix `backbone.`, and all others.

    In the authors' files no name has that prefix: there the names that begin with `HEAD_PREFIXES`
    are the head's.
    """
    has_prefix = any(name.startswith('backbone.') for name in weights)
    backbone = {}
    head = {}
    for name, tensor in weights.items():
        if has_prefix:
            is_backbone = name.startswith('backbone.')
        else:
            is_backbone = not name.startswith(HEAD_PREFIXES)
        if is_backbone:
            backbone[name.removeprefix('backbone.')] = tensor
        else:
            head[name] = tensor
    return backbone, head


class ModelWithBackbone(RenamesWeights):
    """A model with a `backbone`; files may name its tensors with or without that prefix."""

    backbone: Backbone

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename a file's tensors to `backbone.…` and the head's names."""
        backbone, head = split_head(weights)
        renamed = {}
        for name, tensor in self.backbone.rename_weights(backbone).items():
            renamed[f'backbone.{name}'] = tensor
        return renamed | head

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the backbone's output norms, which a pretrained file may lack."""
        return tuple(f'backbone.{prefix}' for prefix in self.backbone.optional_prefixes())

    def table_grids(self, img_size: int | tuple[int, int]) -> dict[str, Grid]:
        """Return the grids of the backbone's position tables at an image size, by their names."""
        grids = self.backbone.table_grids(img_size)
        return {f'backbone.{name}': grid for name, grid in grids.items()}


class Classifier(ModelWithBackbone):
    """A backbone and the head that it was published with: images to logits.

    PolaPVT and PolaPVTv2: mean over tokens, linear `head`. PolaSwin and PolaDeiT: LayerNorm `norm`,
    mean, linear `head`. PolaFormerPP: 1x1 convolution `proj`, BatchNorm `norm`, SiLU, mean, 1x1
    convolution `head`.

    Attributes:
        num_features: channels C of the last map.
        head_hidden_size: channels F that `head` reads: C, or the output channels of `proj`.
        global_pool: 'avg', the mean over tokens, or '' for none.

    Args:
        backbone: class of the backbone.
        num_classes: length of the logits; 0 to return the pooled features instead.
        projection: channels of `proj`; None: 2,048, or four times the backbone's if that is more
            (b5: 2,560).
        arguments: arguments of the backbone, without `out_norm`, which follows from the head.
        base: arguments of the other base class, if a subclass has one.

    Raises:
        ValueError: an argument is invalid; the message names it.
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
        if not isinstance(backbone, type) or not issubclass(backbone, Backbone):
            raise ValueError(
                f'backbone: expected one of {listed(dir(backbones), None)}, got {backbone}'
            )
        spec = backbone.head
        arguments = {'out_norm': spec.out_norm, **(arguments or {})}
        if arguments['out_norm'] != spec.out_norm:
            raise ValueError(
                f'out_norm: expected {spec.out_norm}, as in the published classifier of '
                f'{backbone.__name__}, got {arguments["out_norm"]}'
            )
        if projection is not None and not spec.projection:
            raise ValueError(
                f'projection: expected None, as the head of {backbone.__name__} has none, '
                f'got {projection}'
            )
        super().__init__(**base)
        self.backbone = backbone(**arguments)
        self.backbone.out_indices = self.backbone.out_indices[-1:]  # the head reads no other map
        channels = self.backbone.embed_dims[self.backbone.out_indices[0]]
        self.num_features = channels
        self.head_hidden_size = channels
        self.norm: nn.Module = nn.Identity()
        if spec.norm_eps is not None:
            self.norm = nn.LayerNorm(channels, eps=spec.norm_eps)
        self.proj: nn.Conv2d | None = None
        if spec.projection:
            self.head_hidden_size = projection or max(2048, 4 * channels)
            self.proj = nn.Conv2d(channels, self.head_hidden_size, 1)
            draw_layer(self.proj)
            self.norm = nn.BatchNorm2d(self.head_hidden_size)
        self.global_pool = 'avg'
        self.num_classes = num_classes
        self.head = head_layer(self.head_hidden_size, num_classes, convolution=spec.projection)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [B, in_channels, H, W] -> the last map [B, C, h, w], after a LayerNorm `norm`."""
        last_map = self.backbone(images)[-1]
        return self.normed(last_map)

    def normed(self, x: Tensor) -> Tensor:
        """Apply the LayerNorm `norm`, if there is one, to a map [B, C, h, w] of the last stage."""
        if not isinstance(self.norm, nn.LayerNorm):
            return x
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Classify the map [B, C, h, w] of `forward_features`.

        Returns:
            Logits [B, num_classes]; with `pre_logits` or without classes the input [B, F] of
            `head`. Without global pooling both are maps, [B, num_classes, h, w] and [B, F, h, w].
        """
        if self.proj is not None:
            x = F.silu(self.norm(self.proj(x)))
        if self.global_pool:
            x = x.mean((2, 3), keepdim=True)
        if not pre_logits:
            # Not isinstance(self.head, nn.Linear), which quantisation may have replaced
            if self.proj is not None:
                x = self.head(x)
            else:
                x = self.head(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.global_pool:
            x = x.flatten(1)
        return x

    def forward(self, images: Tensor) -> Any:
        """Images [B, in_channels, H, W] -> logits [B, num_classes]."""
        return self.forward_head(self.forward_features(images))
