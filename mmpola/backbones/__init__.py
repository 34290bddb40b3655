"""The backbones, registered with MMEngine in scope 'mmpola'.

With torch 2.6 or newer, importing them also lets torch.load read the checkpoints that MMEngine's Runner writes, so that
OpenMMLab's own scripts and inferencers can open those of models with these backbones.
"""

from mmpola.backbones.pola_deit import PolaDeiT
from mmpola.backbones.pola_pvt import PolaPVT
from mmpola.backbones.pola_pvt_v2 import PolaPVTv2
from mmpola.backbones.pola_swin import PolaSwin
from mmpola.backbones.polaformer_pp import PolaFormerPP
from mmpola.checkpoint.reading import extend_torch_allow_list

__all__ = ['PolaDeiT', 'PolaFormerPP', 'PolaPVT', 'PolaPVTv2', 'PolaSwin']

extend_torch_allow_list()
