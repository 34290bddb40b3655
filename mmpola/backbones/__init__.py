"""Backbones, registered in scope 'mmpola'."""

from mmpola.backbones.pola_pvt import PolaPVT
from mmpola.backbones.pola_swin import PolaSwin
from mmpola.backbones.polaformer_pp import PolaFormerPP

__all__ = ['PolaFormerPP', 'PolaPVT', 'PolaSwin']
