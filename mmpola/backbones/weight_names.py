"""The names of parameters in the authors' files, and in these backbones.

Ours are the same in every family: `stem`, `stages.I.downsample`, `stages.I.pos_embed`,
`stages.I.blocks.J`, `norms.I`, with I and J from 0. Each family lists the substitutions that turn
released names into ours, and those for the way back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

Value = TypeVar('Value')

COMPUTED_BUFFERS = ('relative_position_index', 'attn_mask', 'angle')
"""Suffixes of the names of buffers that are computed, never read from a file."""


class ReleasedNames(NamedTuple):
    """How the names of a family's released files are turned into ours and back.

    Attributes:
        to_ours: (pattern, replacement) for `re.sub`; all pairs are applied to a released name, in
            this order.
        to_released: the same for our names.
    """

    to_ours: Sequence[tuple[str, str]] = ()
    to_released: Sequence[tuple[str, str]] = ()


# Here the learned feature map is a module inside the attention layer.
FEATURE_MAP_TO_OURS = (r'\.attn\.(power|scale|s1|s2)$', r'.attn.feature_map.\1')
FEATURE_MAP_TO_RELEASED = (r'\.attn\.feature_map\.', '.attn.')

POLA_SWIN = ReleasedNames(
    to_ours=[
        (r'^patch_embed\.', 'stem.'),
        (r'^layers\.0\.downsample\.', 'stages.1.downsample.'),
        (r'^layers\.1\.downsample\.', 'stages.2.downsample.'),
        (r'^layers\.2\.downsample\.', 'stages.3.downsample.'),
        (r'^layers\.(\d+)\.', r'stages.\1.'),
        FEATURE_MAP_TO_OURS,
    ],
    to_released=[
        (r'^stem\.', 'patch_embed.'),
        (r'^stages\.1\.downsample\.', 'layers.0.downsample.'),
        (r'^stages\.2\.downsample\.', 'layers.1.downsample.'),
        (r'^stages\.3\.downsample\.', 'layers.2.downsample.'),
        (r'^stages\.(\d+)\.', r'layers.\1.'),
        FEATURE_MAP_TO_RELEASED,
    ],
)

POLA_PVT = ReleasedNames(
    to_ours=[
        (r'^patch_embed1\.', 'stem.'),
        (r'^patch_embed2\.', 'stages.1.downsample.'),
        (r'^patch_embed3\.', 'stages.2.downsample.'),
        (r'^patch_embed4\.', 'stages.3.downsample.'),
        (r'^pos_embed1$', 'stages.0.pos_embed'),
        (r'^pos_embed2$', 'stages.1.pos_embed'),
        (r'^pos_embed3$', 'stages.2.pos_embed'),
        (r'^pos_embed4$', 'stages.3.pos_embed'),
        (r'^block1\.', 'stages.0.blocks.'),
        (r'^block2\.', 'stages.1.blocks.'),
        (r'^block3\.', 'stages.2.blocks.'),
        (r'^block4\.', 'stages.3.blocks.'),
        # A fifth stage: it becomes unknown names in `stages`, which strict loading refuses
        (r'^(patch_embed|pos_embed|block)\d', r'stages.\g<0>'),
        FEATURE_MAP_TO_OURS,
    ],
    to_released=[
        (r'^stem\.', 'patch_embed1.'),
        (r'^stages\.1\.downsample\.', 'patch_embed2.'),
        (r'^stages\.2\.downsample\.', 'patch_embed3.'),
        (r'^stages\.3\.downsample\.', 'patch_embed4.'),
        (r'^stages\.0\.pos_embed$', 'pos_embed1'),
        (r'^stages\.1\.pos_embed$', 'pos_embed2'),
        (r'^stages\.2\.pos_embed$', 'pos_embed3'),
        (r'^stages\.3\.pos_embed$', 'pos_embed4'),
        (r'^stages\.0\.blocks\.', 'block1.'),
        (r'^stages\.1\.blocks\.', 'block2.'),
        (r'^stages\.2\.blocks\.', 'block3.'),
        (r'^stages\.3\.blocks\.', 'block4.'),
        FEATURE_MAP_TO_RELEASED,
    ],
)

# PVT v2 also has a norm at the end of each stage.
POLA_PVT_V2 = ReleasedNames(
    to_ours=[
        *POLA_PVT.to_ours,
        (r'^norm1\.', 'norms.0.'),
        (r'^norm2\.', 'norms.1.'),
        (r'^norm3\.', 'norms.2.'),
        (r'^norm4\.', 'norms.3.'),
    ],
    to_released=[
        *POLA_PVT.to_released,
        (r'^norms\.0\.', 'norm1.'),
        (r'^norms\.1\.', 'norm2.'),
        (r'^norms\.2\.', 'norm3.'),
        (r'^norms\.3\.', 'norm4.'),
    ],
)

# Each block of DeiT is a stage here.
POLA_DEIT = ReleasedNames(
    to_ours=[
        (r'^pos_embed$', 'stem.pos_embed'),
        (r'^patch_embed\.', 'stem.'),
        (r'^blocks\.(\d+)\.', r'stages.\1.blocks.0.'),
        FEATURE_MAP_TO_OURS,
    ],
    to_released=[
        (r'^stem\.pos_embed$', 'pos_embed'),
        (r'^stem\.', 'patch_embed.'),
        (r'^stages\.(\d+)\.blocks\.0\.', r'blocks.\1.'),
        FEATURE_MAP_TO_RELEASED,
    ],
)

# Here the stem's first convolution is `stem.proj`, as in the other families, and LayerNorms are
# not wrapped in other modules. The authors' detectors and segmenters call the norms of the outputs
# `extra_norms`.
POLAFORMER_PP = ReleasedNames(
    to_ours=[
        (r'^patch_embed\.proj\.0\.', 'stem.proj.'),
        (r'^patch_embed\.proj\.1\.', 'stem.layers.0.'),
        (r'^patch_embed\.proj\.3\.', 'stem.layers.2.'),
        (r'^patch_embed\.proj\.4\.', 'stem.layers.3.'),
        (r'^patch_embed\.proj\.6\.', 'stem.layers.5.'),
        (r'^patch_embed\.proj\.7\.', 'stem.layers.6.'),
        (r'^patch_embed\.proj\.9\.', 'stem.layers.8.'),
        (r'^patch_embed\.proj\.10\.', 'stem.layers.9.'),
        (r'^(layers\.\d+\.blocks\.\d+\.norm[12])\.norm\.', r'\1.'),
        (r'^extra_norms\.(\d+)\.norm\.', r'norms.\1.'),
        *POLA_SWIN.to_ours,
    ],
    to_released=[
        (r'^stem\.proj\.', 'patch_embed.proj.0.'),
        (r'^stem\.layers\.0\.', 'patch_embed.proj.1.'),
        (r'^stem\.layers\.2\.', 'patch_embed.proj.3.'),
        (r'^stem\.layers\.3\.', 'patch_embed.proj.4.'),
        (r'^stem\.layers\.5\.', 'patch_embed.proj.6.'),
        (r'^stem\.layers\.6\.', 'patch_embed.proj.7.'),
        (r'^stem\.layers\.8\.', 'patch_embed.proj.9.'),
        (r'^stem\.layers\.9\.', 'patch_embed.proj.10.'),
        (r'^(stages\.\d+\.blocks\.\d+\.norm[12])\.', r'\1.norm.'),
        (r'^norms\.(\d+)\.', r'extra_norms.\1.norm.'),
        *POLA_SWIN.to_released,
    ],
)


def to_ours(weights: Mapping[str, Value], names: ReleasedNames) -> dict[str, Value]:
    """Rename released names to ours; other names stay, buffers that are computed are dropped."""
    renamed = {}
    for name, value in weights.items():
        if not name.endswith(COMPUTED_BUFFERS):
            renamed[_substitute(name, names.to_ours)] = value
    return renamed


def to_released(weights: Mapping[str, Value], names: ReleasedNames) -> dict[str, Value]:
    """Rename a backbone's names to the released ones; other names stay."""
    return {_substitute(name, names.to_released): value for name, value in weights.items()}


def _substitute(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Apply all pairs (pattern, replacement) to a name."""
    for pattern, replacement in pairs:
        name = re.sub(pattern, replacement, name)
    return name
