"""Recognise the model that a file of weights belongs to: `likely_model`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mmpola.backbones import named_backbone
from mmpola.backbones.base import Backbone
from mmpola.layers import position_tables
from mmpola.zoo import ARCHITECTURES

ENOUGH = 0.9
"""Share of a backbone's tensors that a file must have."""


def likely_model(weights: Mapping[str, Tensor], other_than: Backbone) -> str:
    """Return the name of the model whose tensors a file has.

    The named backbones are built on the meta device, which takes about two seconds.

    Args:
        weights: tensors by any names that backbones know.
        other_than: the backbone that the file does not fit.

    Returns:
        The name, as in `mmpola://NAME`; '' if no model has most of the tensors, or `other_than`
        has.
    """
    if _share(weights, other_than) >= ENOUGH:  # another image size, or a damaged file
        return ''
    found = ''
    most = ENOUGH
    for name in ARCHITECTURES:
        cls, arguments = named_backbone(name)
        with torch.device('meta'):
            backbone = cls(**arguments)
        share = _share(weights, backbone)
        if share >= most:
            found = name
            most = share
    return found


def _share(weights: Mapping[str, Tensor], backbone: Backbone) -> float:
    """Return how many tensors a file and a backbone share, as a part of those that either has.

    Position tables, which depend on the images, and output norms, which a pretrained file lacks,
    say nothing: in a small backbone they would be a tenth of the tensors.
    """
    tables = position_tables(backbone)
    optional = backbone.optional_prefixes()
    expected = {}
    for name, x in backbone.state_dict().items():
        if name not in tables and not name.startswith(optional):
            expected[name] = x
    given = backbone.rename_weights(weights)
    names = set(expected)
    names.update(name for name in given if name.startswith('stages.') and name not in tables)
    same = 0
    for name, x in given.items():
        own = expected.get(name)
        # Quantised models have entries that are no tensors, too.
        if isinstance(x, Tensor) and isinstance(own, Tensor) and x.shape == own.shape:
            same += 1
    return same / len(names)
