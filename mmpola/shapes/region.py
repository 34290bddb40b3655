"""Masks in COCO's formats: polygons, run lengths and boxes, in pixels from the left and top edge of the image."""

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

_FINE = 4  # contours are traced on a grid this much finer, so that they follow pixel edges, not pixel centres
_TOLERANCE = 2.0  # deviation of a simplified outline in fine pixels (half a pixel)


def box(mask: Mask) -> list[int]:
    """Return the tight box [x, y, width, height] of a mask [H, W]."""
    return list(cv2.boundingRect(mask.astype(np.uint8)))


def polygons(mask: Mask) -> list[list[float]]:
    """Return polygons [x0, y0, x1, y1, ...] that together cover exactly a mask [H, W].

    COCO's polygons have no holes: a mask with a hole is cut in two along a column through it, recursively.
    """
    fine = mask.astype(np.uint8).repeat(_FINE, axis=0).repeat(_FINE, axis=1)
    contours, parents = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    for contour, (*_, parent) in zip(contours, parents[0], strict=True):
        if parent >= 0:
            left, _, width, _ = cv2.boundingRect(contour)
            cut = (left + width // 2) // _FINE
            start, end = mask.copy(), mask.copy()
            start[:, cut:] = False
            end[:, :cut] = False
            return polygons(start) + polygons(end)
    outlines = [cv2.approxPolyDP(contour, _TOLERANCE, closed=True) for contour in contours]
    return [((outline.ravel() + 0.5) / _FINE).tolist() for outline in outlines]


def run_lengths(mask: Mask) -> dict[str, list[int]]:
    """Return COCO's uncompressed run lengths of a mask [H, W]: by column, zeros and ones alternating, zeros first."""
    pixels = mask.ravel(order='F')
    changes = np.flatnonzero(np.diff(pixels)) + 1
    bounds = [0, *changes.tolist(), pixels.size]
    counts = np.diff(bounds).tolist()
    return {'size': list(mask.shape), 'counts': [0, *counts] if pixels[0] else counts}
