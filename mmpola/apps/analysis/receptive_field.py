"""The effective receptive field: how much each pixel influences the centre of a network's last map.

Luo, Li, Urtasun, Zemel: Understanding the Effective Receptive Field in Deep Convolutional Neural
Networks (NeurIPS 2016); areas as in Ding, Zhang, Zhou, Han, Ding, Sun: Scaling Up Your Kernels to
31x31 (CVPR 2022).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from timm.layers import Format
from torch import Tensor, nn

from mmpola.apps.analysis.maps import COLOUR_MAP

AREA_SHARES = (0.2, 0.5, 0.99)
"""Shares of a receptive field whose areas are reported."""

DECADES = 4
"""Powers of ten that the colours of a receptive field span; smaller values have the lowest one."""


def effective_receptive_field(
    model: nn.Module, images: Tensor, advance: Callable[[int], None] = lambda images: None
) -> NDArray[np.float64]:
    """Return the influence [H, W] of each pixel on the central cell of the last map.

    The cell's positive channels are summed up, and differentiated with respect to the image. The
    influence is the absolute value of this gradient, summed over the image's channels, as a mean
    over images. The sum over all channels of the cell would be constant behind a LayerNorm with
    its initial weights. If the number of cells is even, the one below or right of the centre is
    taken.

    Args:
        model: a classifier of timm, or any module that returns a map [B, C, h, w], or a list or
            tuple of which the last is taken: a backbone of mmpola, mmdet or mmseg, or a model of
            timm with `features_only=True`, whose maps may be [B, h, w, C]. It runs in eval mode.
        images: [N, C, H, W], as the model reads them, on its device; one runs at a time.
        advance: called with 1 after each image.

    Raises:
        ValueError: the result is no map, or its central cell does not depend on the images.
    """
    total = np.zeros(images.shape[-2:])
    training = model.training
    model.eval()
    try:
        for image in images.detach().split(1):
            cell = _central_cell(model, image.requires_grad_())
            (gradient,) = torch.autograd.grad(cell.relu().sum(), image)
            total += gradient.abs().sum(dim=(0, 1)).double().cpu().numpy()
            advance(1)
    finally:
        model.train(training)
    if not (np.isfinite(total).all() and total.any()):
        raise ValueError(
            'model: expected finite gradients, not all of them zero, '
            f'got a sum of {total.sum():g} from {type(model).__name__}'
        )
    return total / len(images)


def _central_cell(model: nn.Module, image: Tensor) -> Tensor:
    """Return the channels [C] of the central cell of a model's last map."""
    get_intermediates: Any = getattr(model, 'forward_intermediates', None)  # of timm's classifiers
    channels_last = False
    if get_intermediates is None:
        maps = model(image)
        channels_last = getattr(model, 'output_fmt', None) == Format.NHWC
    else:
        maps = get_intermediates(image, indices=1, intermediates_only=True)
    last = maps
    if isinstance(maps, list | tuple):
        last = maps[-1]
    if not isinstance(last, Tensor) or last.ndim != 4:
        got: object = type(last).__name__
        if isinstance(last, Tensor):
            got = list(last.shape)
        raise ValueError(f'model: expected a map [B, C, h, w] as its last result, got {got}')
    if channels_last:
        last = last.permute(0, 3, 1, 2)
    return last[0, :, last.shape[2] // 2, last.shape[3] // 2]


def areas(field: NDArray[np.float64], shares: Sequence[float] = AREA_SHARES) -> list[float]:
    """Return the area of the smallest square that holds a share of the field, for each share.

    The area is a share of the image's. The square may be anywhere: the central cell of strided
    convolutions is not behind the centre of the image.

    Args:
        field: [H, W], not negative.
        shares: from 0 to 1, for example 0.5 for half of the field.
    """
    height, width = field.shape
    sums = np.pad(field, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)

    def largest_sum(side: int) -> float:
        """Return the most that a square holds; it is cut where the image is narrower."""
        h = min(side, height)
        w = min(side, width)
        return float((sums[h:, w:] - sums[:-h, w:] - sums[h:, :-w] + sums[:-h, :-w]).max())

    total = sums[-1, -1]
    sides = range(1, max(height, width) + 1)
    found = []
    for share in shares:
        side = sides[bisect_left(sides, share * total, key=largest_sum)]
        found.append(min(side, height) * min(side, width) / field.size)
    return found


def area_texts(field: NDArray[np.float64]) -> list[str]:
    """Return the areas of `AREA_SHARES` in words."""
    return [
        f'{share:.0%} in {area:.1%}' for share, area in zip(AREA_SHARES, areas(field), strict=True)
    ]


def draw_receptive_fields(
    fields: Mapping[str, NDArray[np.float64]], width: float | None = None
) -> Figure:
    """Draw receptive fields [H, W] side by side, with one logarithmic scale.

    Each is drawn as a share of its own maximum. The keys are the titles of the panels; below each
    are the areas of `AREA_SHARES`.

    Args:
        fields: [H, W] by title.
        width: of the figure in inches; None for panels of 2.6 inches. In narrow panels the texts
            get smaller, down to 6 points.
    """
    rows, columns = next(iter(fields.values())).shape
    lowest = 10.0**-DECADES
    if width is None:
        width = 2.6 * len(fields) / 0.85
    side = 0.85 * width / len(fields)
    points = float(np.clip(4 * side, 6, 9))
    height = side * rows / columns + points / 9
    figure = Figure(figsize=(width, height), dpi=110, layout='constrained')
    panels = figure.subplots(1, len(fields), squeeze=False)[0]
    for axes, (name, field) in zip(panels, fields.items(), strict=True):
        relative = np.clip(field / field.max(), lowest, 1)
        drawn = axes.imshow(relative, cmap=COLOUR_MAP, norm=LogNorm(lowest, 1))
        axes.set_title(name, fontsize=points + 1)
        axes.set_xlabel('\n'.join(area_texts(field)) + '\nof the area', fontsize=points)
        axes.set(xticks=[], yticks=[])
    bar = figure.colorbar(drawn, ax=list(panels), extend='min', fraction=0.04, pad=0.01)
    bar.set_label('gradient / largest', fontsize=points)
    bar.ax.tick_params(labelsize=points - 1)
    return figure
