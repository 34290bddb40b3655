"""The list of models that have a name: for `mmpola://NAME`, `timm.create_model` and the tables.

A new variant is an entry here and its `arch` in the module of its family.
"""

from __future__ import annotations

from typing import Any

NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    'pola_pvt_nano': ('PolaPVT', {'arch': 'nano', 'pretrain_img_size': 96}),
    'pola_pvt_tiny': ('PolaPVT', {'arch': 'tiny'}),
    'pola_pvt_small': ('PolaPVT', {'arch': 'small'}),
    'pola_pvt_medium': ('PolaPVT', {'arch': 'medium'}),
    'pola_pvt_large': ('PolaPVT', {'arch': 'large'}),
    'pola_pvt_v2_b0': ('PolaPVTv2', {'arch': 'b0'}),
    'pola_pvt_v2_b1': ('PolaPVTv2', {'arch': 'b1'}),
    'pola_pvt_v2_b2': ('PolaPVTv2', {'arch': 'b2'}),
    'pola_pvt_v2_b3': ('PolaPVTv2', {'arch': 'b3'}),
    'pola_pvt_v2_b4': ('PolaPVTv2', {'arch': 'b4'}),
    'pola_pvt_v2_b5': ('PolaPVTv2', {'arch': 'b5'}),
    'pola_swin_nano': ('PolaSwin', {'arch': 'nano', 'pretrain_img_size': 96}),
    'pola_swin_tiny': ('PolaSwin', {'arch': 'tiny'}),
    'pola_swin_small': ('PolaSwin', {'arch': 'small'}),
    'pola_swin_base': ('PolaSwin', {'arch': 'base'}),
    'pola_swin_small_384': (
        'PolaSwin',
        {'arch': 'small', 'pretrain_img_size': 384, 'window_size': 12},
    ),
    'pola_swin_base_384': (
        'PolaSwin',
        {'arch': 'base', 'pretrain_img_size': 384, 'window_size': 12},
    ),
    'pola_deit_tiny': ('PolaDeiT', {'arch': 'tiny'}),
    'pola_deit_small': ('PolaDeiT', {'arch': 'small'}),
    'pola_deit_base': ('PolaDeiT', {'arch': 'base'}),
    'polaformer_pp_b0': ('PolaFormerPP', {'arch': 'b0'}),
    'polaformer_pp_b1': ('PolaFormerPP', {'arch': 'b1'}),
    'polaformer_pp_b2': ('PolaFormerPP', {'arch': 'b2'}),
    'polaformer_pp_b3': ('PolaFormerPP', {'arch': 'b3'}),
    'polaformer_pp_b4': ('PolaFormerPP', {'arch': 'b4'}),
    'polaformer_pp_b5': ('PolaFormerPP', {'arch': 'b5'}),
}
"""Name -> (class in `mmpola.PUBLIC_NAMES`, its arguments)."""

EVERYDAY_DETECTOR = 'faster_rcnn_pola_swin_small'
"""The detector of everyday things, whose weights come with mmpola: `mmpola://NAME`."""

EVERYDAY_CONFIG = f'configs/pretrain_{EVERYDAY_DETECTOR}.py'
"""Its config in the repository."""

OTHER_SIZES = ('pola_swin_small_384', 'pola_swin_base_384')
"""Models that are an `arch` for other image sizes."""

ARCHITECTURES = {name: entry for name, entry in NAMED.items() if name not in OTHER_SIZES}
"""A model for each `arch` of each family."""
