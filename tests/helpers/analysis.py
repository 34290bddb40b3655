"""A model of one attention layer, for the tests of mmpola.apps.analysis."""

from torch import nn


class OneLayer(nn.Module):
    """A linear attention layer on maps [1, C, h, w]."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    @property
    def conv(self):
        """The layer's depth-wise convolution."""
        return self.layer.lepe if hasattr(self.layer, 'lepe') else self.layer.dwc

    def forward(self, maps):
        return self.layer(maps)
