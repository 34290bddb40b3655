"""The backbones, registered with MMEngine in scope 'mmpola'."""

from mmpola.backbones.pola_deit import PolaDeiT
from mmpola.backbones.pola_pvt import PolaPVT
from mmpola.backbones.pola_pvt_v2 import PolaPVTv2
from mmpola.backbones.pola_swin import PolaSwin
from mmpola.backbones.polaformer_pp import PolaFormerPP

__all__ = ['PolaDeiT', 'PolaFormerPP', 'PolaPVT', 'PolaPVTv2', 'PolaSwin']
