"""A model of one attention layer, for the tests of mmpola.analysis."""

from torch import nn


class OneLayer(nn.Module):
    """A linear attention layer on maps [1, C, h, w] of one grid."""

    def __init__(self, layer, grid, *arguments):
        super().__init__()
        self.layer, self.grid, self.arguments = layer, grid, arguments

    @property
    def conv(self):
        """The layer's depth-wise convolution."""
        return self.layer.lepe if hasattr(self.layer, 'lepe') else self.layer.dwc

    def forward(self, maps):
        return self.layer(maps.flatten(2).mT, self.grid, *self.arguments)
