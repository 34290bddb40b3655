"""mmdet's Swin and PVT with the initial weights that the experiments give all backbones."""

from __future__ import annotations

from mmdet.models.backbones import PyramidVisionTransformer, SwinTransformer
from mmengine.model import initialize, xavier_init
from torch import nn

from mmpola.registry import MODELS

INITIAL_WEIGHTS = {'type': 'Xavier', 'layer': 'Linear', 'distribution': 'uniform'}
"""As in configs/faster_rcnn_pola_swin_small.py; mmdet's backbones overwrite those of the model."""


@MODELS.register_module()
class PlainSwin(SwinTransformer):
    """mmdet's Swin Transformer with softmax attention in shifted windows."""

    def init_weights(self) -> None:
        """Draw the weights of all Linear layers."""
        super().init_weights()
        initialize(self, INITIAL_WEIGHTS)


@MODELS.register_module()
class PlainPVT(PyramidVisionTransformer):
    """mmdet's PVT with softmax attention to keys of a reduced map."""

    def init_weights(self) -> None:
        """Draw the weights of all Linear layers, and of the MLPs, which are 1x1 convolutions."""
        super().init_weights()
        initialize(self, INITIAL_WEIGHTS)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
                xavier_init(module, distribution='uniform')
