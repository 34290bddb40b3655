"""The names of parameters in the released files and in older files of ours, and the names in these backbones.

Ours are the same in every family: `stem`, `stages.I.downsample`, `stages.I.pos_embed`, `stages.I.blocks.J`, `norms.I`.
A family's rules map the released names one to one, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, TypeVar

Value = TypeVar('Value')

COMPUTED = ('relative_position_index', 'attn_mask', 'angle')
"""Ends of names of buffers that follow from the input size or the architecture; they are never read from a file."""


class Rule(NamedTuple):
    """The beginning of a name, in which I, J and K are numbers.

    Attributes:
        released: in the released files.
        ours: in these backbones; I is greater by `shift`.
        shift: see above.
    """

    released: str
    ours: str
    shift: int = 0


NORMS = Rule('normI.', 'norms.I.')
"""Output norms, which are in no released file; files of ours had them under this name."""


def _feature_map(released: str, ours: str, shift: int = 0) -> tuple[Rule, ...]:
    """Return the rules of a block's learned feature map, which is a module of its own here."""
    names = ('power', 'scale', 's1', 's2')
    return tuple(Rule(f'{released}attn.{name}', f'{ours}attn.feature_map.{name}', shift) for name in names)


POLA_SWIN = (
    Rule('patch_embed.', 'stem.'),
    Rule('layers.I.downsample.', 'stages.I.downsample.', 1),
    *_feature_map('layers.I.blocks.J.', 'stages.I.blocks.J.'),
    Rule('layers.I.', 'stages.I.'),
    NORMS,
)
POLA_PVT = (
    Rule('patch_embed1.', 'stem.'),
    Rule('patch_embedI.', 'stages.I.downsample.', -1),
    Rule('pos_embedI', 'stages.I.pos_embed', -1),
    *_feature_map('blockI.J.', 'stages.I.blocks.J.', -1),
    Rule('blockI.', 'stages.I.blocks.', -1),
    NORMS,
)
POLA_PVT_V2 = (*POLA_PVT[:-1], Rule('normI.', 'norms.I.', -1))
POLA_DEIT = (
    Rule('pos_embed', 'stem.pos_embed'),
    Rule('patch_embed.', 'stem.'),
    *_feature_map('blocks.I.', 'stages.I.blocks.0.'),
    Rule('blocks.I.', 'stages.I.blocks.0.'),
    NORMS,
)
POLAFORMER_PP = (
    Rule('patch_embed.proj.0.', 'stem.proj.'),
    Rule('patch_embed.proj.I.', 'stem.layers.I.', -1),
    Rule('layers.I.blocks.J.normK.norm.', 'stages.I.blocks.J.normK.'),
    *POLA_SWIN[1:],
)


def to_ours(weights: Mapping[str, Value], rules: tuple[Rule, ...]) -> dict[str, Value]:
    """Rename released names to those of a backbone; other names stay, and buffers that are computed are left out."""
    directed = [(rule.released, rule.ours, rule.shift) for rule in rules]
    return {_renamed(name, directed): x for name, x in weights.items() if not name.endswith(COMPUTED)}


def to_released(weights: Mapping[str, Value], rules: tuple[Rule, ...]) -> dict[str, Value]:
    """Rename a backbone's names to the released ones; other names stay."""
    directed = [(rule.ours, rule.released, -rule.shift) for rule in rules]
    return {_renamed(name, directed): x for name, x in weights.items()}


def _renamed(name: str, rules: list[tuple[str, str, int]]) -> str:
    """Apply the first of (beginning, new beginning, what is added to I) that matches a name."""
    for before, after, shift in rules:
        if match := _pattern(before).match(name):
            for letter, number in match.groupdict().items():
                after = after.replace(letter, str(int(number) + shift * (letter == 'I')))
            return after + name[match.end() :]
    return name


@cache
def _pattern(beginning: str) -> re.Pattern[str]:
    """Compile the beginning of a name, which ends with a dot or is the whole name."""
    numbered = re.sub('[IJK]', lambda letter: rf'(?P<{letter[0]}>\d+)', re.escape(beginning))
    return re.compile(numbered if beginning.endswith('.') else f'{numbered}$')
