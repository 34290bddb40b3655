"""mmpola: polarity-aware linear attention backbones for OpenMMLab, timm and plain PyTorch.

Operators, layers and backbones are attributes of this package, and `dir(mmpola)` lists them. Their
modules are imported on first use (PEP 562), so `import mmpola` imports nothing else. Configs name
the backbones, and what is listed in `mmpola.registry`, as `mmpola.NAME`.

`import mmpola` also lets mmcv-lite run without compiled operators, see
`mmpola.openmmlab.mmcv.operators`; the command `mmpola operators` does it for programs that import
mmdet first. docs/install.md lists what else is changed in a process.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from mmpola.openmmlab.mmcv.finder import find_mmcv_operators as _find_mmcv_operators

__version__ = '0.1.0'

PUBLIC_NAMES = {
    'ExpMap': 'mmpola.ops',
    'PowerMap': 'mmpola.ops',
    'available_backends': 'mmpola.ops',
    'mix_and_gate': 'mmpola.ops',
    'polarity_attention': 'mmpola.ops',
    'PolaAttention': 'mmpola.layers',
    'PolaMultiheadAttention': 'mmpola.layers',
    'PolaFormerPPAttention': 'mmpola.layers',
    'PolaSpatialReductionAttention': 'mmpola.layers',
    'PolaDeiT': 'mmpola.papers.ablations.pola_deit',
    'PolaFormerPP': 'mmpola.backbones.polaformer_pp',
    'PolaPVT': 'mmpola.backbones.pola_pvt',
    'PolaPVTv2': 'mmpola.backbones.pola_pvt_v2',
    'PolaSwin': 'mmpola.backbones.pola_swin',
}
"""The module of each public name."""


_find_mmcv_operators()


def __getattr__(name: str) -> _Any:
    if name == 'mmcv_operators':  # files that `mmpola operators` wrote import it so
        return _import_module('mmpola.openmmlab.mmcv.operators')
    if name not in PUBLIC_NAMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(_import_module(PUBLIC_NAMES[name]), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return ['__version__', *sorted(PUBLIC_NAMES)]
