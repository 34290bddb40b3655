"""A small generated data set of shapes, to try mmpola without a download.

    python -m mmpola.openmmlab.shapes OUT --images 600

draws seeded scenes of six shapes, whose masks are known, and writes them for detection as COCO
instances (`OUT/coco`), for segmentation as label maps in ADE20K's layout (`OUT/ade`) and for
classification, one shape per image, in class folders (`OUT/classes`). A second run with the same
options does nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from tqdm import tqdm

from mmpola.files import complete_folder
from mmpola.messages import UsageError, run_main

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')

Mask = NDArray[np.bool_]
"""[H, W]."""

EMPTY_SCENES = 0.05
CROWD_SCENES = 0.08
"""Shares of all scenes."""

SMALL_OBJECTS = 0.15
"""Share of all objects."""

LEAST_VISIBLE_SHARE = 0.3
LEAST_VISIBLE_PIXELS = 24
"""What stays visible of each object."""

PLACEMENTS = 30
"""Attempts before an object is omitted."""

SUBPIXELS = 4
"""Sub-pixels per pixel side, of coverage and of polygons."""

DRAWING_VERSION = 2
"""Version of the drawing code: increase it when the same options give different images."""

FIRST_VAL = 1_000_000
"""Index of the first validation scene."""

SINGLE_SIDE = 64
"""Side of an image of one shape in pixels."""


@dataclass
class Instance:
    """The visible part of an object, or of a crowd of tiny objects.

    Attributes:
        class_index: into CLASSES.
        mask: visible pixels, bool [H, W].
        pixels: number of pixels before others hid a part of them.
        iscrowd: whether it is a crowd.
    """

    class_index: int
    mask: Mask
    pixels: int
    iscrowd: bool = False


@dataclass
class Scene:
    """An image, RGB [H, W, 3], and its instances, farthest first; their masks do not overlap."""

    image: NDArray[np.uint8]
    instances: list[Instance]


def draw_scene(
    seed: int, index: int, size: tuple[int, int] = (192, 160), only: int | None = None
) -> Scene:
    """Draw scene number `index` of the series of a seed; equal arguments give equal scenes.

    Args:
        seed: seed of the series, 0 or more.
        index: number of the scene, 0 or more.
        size: (width, height) in pixels.
        only: draw a single large object of this class, an index into CLASSES; None: up to six of
            any class.
    """
    if only is not None:
        painting = _Painting(np.random.default_rng([seed, index, only + 1]), size)
        painting.add_object(only, is_single=True)
    else:
        painting = _Painting(np.random.default_rng([seed, index, 0]), size)
        painting.add_random_objects()
    noisy = painting.image + painting.rng.normal(0, 4, painting.image.shape)
    image = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return Scene(image, painting.instances)


class _Painting:
    """A scene that is being painted.

    Attributes:
        image: float32 [H, W, 3], at first a gradient with clouds.
        instances: farthest first.
    """

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng = rng
        self.size = size
        self.instances: list[Instance] = []
        width, height = size
        corners = rng.uniform(50, 205, 3) + rng.uniform(-45, 45, (2, 2, 3))
        clouds = rng.normal(0, 14, (height // 12 + 2, width // 12 + 2, 3))
        self.image = cv2.resize(corners, size).astype(np.float32)
        self.image += cv2.resize(clouds, size, interpolation=cv2.INTER_CUBIC).astype(np.float32)

    def add_random_objects(self) -> None:
        """Paint up to six objects and perhaps a crowd, or nothing."""
        kind = self.rng.uniform()
        if kind < EMPTY_SCENES:
            return
        if kind < EMPTY_SCENES + CROWD_SCENES:
            self.add_crowd()
        for _ in range(self.rng.integers(1, 7)):
            self.add_object(int(self.rng.integers(len(CLASSES))))

    def add_object(self, class_index: int, is_single: bool = False) -> None:
        """Paint an object at a place where enough of every earlier object stays visible.

        A single object is large, and the frame does not cut it.
        """
        side = min(self.size)
        for _ in range(PLACEMENTS):
            margin = 0.3  # the frame may cut the object, but not in half
            if is_single:
                diameter = self.rng.uniform(0.5, 0.9) * side
                margin = 0.5
            elif self.rng.uniform() < SMALL_OBJECTS:
                diameter = self.rng.uniform(12, 24)
            else:
                diameter = self.rng.uniform(28 / side, 0.6) * side
            if self._place(class_index, diameter, margin * diameter):
                return

    def _place(self, class_index: int, diameter: float, margin: float) -> bool:
        """Paint an object at a random place; return False if it would hide too much there.

        Args:
            class_index: class of the object.
            diameter: diameter of the object in pixels.
            margin: least distance of its centre from the frame in pixels.
        """
        centre = self.rng.uniform(margin, np.subtract(self.size, margin))
        coverage = self._coverage(class_index, centre, diameter)
        mask = coverage >= 0.5
        if mask.sum() < LEAST_VISIBLE_PIXELS:
            return False
        for other in self.instances:
            visible = (other.mask & ~mask).sum()
            if visible < max(LEAST_VISIBLE_SHARE * other.pixels, LEAST_VISIBLE_PIXELS):
                return False
        self._paint(coverage)
        self._cover(Instance(class_index, mask, int(mask.sum())))
        return True

    def add_crowd(self) -> None:
        """Paint a cluster of tiny objects of one class as a single instance."""
        class_index = int(self.rng.integers(len(CLASSES)))
        radius = 0.25 * min(self.size)
        middle = self.rng.uniform(radius, np.subtract(self.size, radius))
        mask = np.zeros(self.image.shape[:2], bool)
        for _ in range(self.rng.integers(12, 31)):
            angle = self.rng.uniform(0, 2 * np.pi)
            distance = radius * np.sqrt(self.rng.uniform())
            centre = middle + distance * np.array([np.cos(angle), np.sin(angle)])
            coverage = self._coverage(class_index, centre, self.rng.uniform(9, 13))
            self._paint(coverage)
            mask |= coverage >= 0.5
        self._cover(Instance(class_index, mask, int(mask.sum()), iscrowd=True))

    def _coverage(
        self, class_index: int, centre: NDArray[np.float64], diameter: float
    ) -> NDArray[np.float32]:
        """Return the share of each pixel, [H, W] in 0 … 1, inside a shape at a random angle."""
        width, height = self.size
        angle = self.rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        polygons_to_fill = []
        for contour in _outline(class_index, self.rng):
            placed = contour @ turn * (diameter / 2) + centre
            polygons_to_fill.append(np.rint(placed * SUBPIXELS - 0.5).astype(np.int32))
        fine = np.zeros((height * SUBPIXELS, width * SUBPIXELS), np.uint8)
        cv2.fillPoly(fine, polygons_to_fill, 255)
        coverage = cv2.resize(fine, self.size, interpolation=cv2.INTER_AREA)
        return coverage.astype(np.float32) / np.float32(255)

    def _paint(self, coverage: NDArray[np.float32]) -> None:
        """Paint a shape in the colour, of eight random ones, that contrasts most around it."""
        mask = coverage >= 0.5
        grown = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8)).astype(bool)
        around = grown & ~mask
        colours = self.rng.uniform(0, 255, (8, 3)).astype(np.float32)
        distances = np.linalg.norm(self.image[around] - colours[:, None], axis=-1)
        # A low percentile, not the mean: the edge must be visible almost everywhere.
        colour = colours[np.percentile(distances, 15, axis=1).argmax()]
        self.image += coverage[..., None] * (colour - self.image)

    def _cover(self, instance: Instance) -> None:
        """Add an instance, which hides a part of the earlier ones."""
        for other in self.instances:
            other.mask &= ~instance.mask
        self.instances.append(instance)


def _outline(class_index: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Return the contours of a class inside the unit circle, each [P, 2] as (x, y).

    The inside of a second contour is a hole. Proportions that do not define the class (a star's
    depth, a ring's or a cross's thickness) are random.
    """
    match CLASSES[class_index]:
        case 'circle':
            return [_regular_polygon(64)]
        case 'square':
            return [_regular_polygon(4)]
        case 'triangle':
            return [_regular_polygon(3)]
        case 'star':
            radii = np.tile([1.0, rng.uniform(0.40, 0.50)], 5)
            return [_regular_polygon(10) * radii[:, None]]
        case 'ring':
            return [_regular_polygon(64), _regular_polygon(64) * rng.uniform(0.50, 0.62)]
        case _:  # cross
            reach = 0.95
            half = rng.uniform(0.24, 0.31)
            arm = np.array([[half, half], [reach, half], [reach, -half]])  # a quarter
            quarter_turn = [[0, -1], [1, 0]]
            arms = [arm @ np.linalg.matrix_power(quarter_turn, turns) for turns in range(4)]
            return [np.concatenate(arms)]


def _regular_polygon(corners: int) -> NDArray[np.float64]:
    """Return the corners of a regular polygon in the unit circle, [P, 2]."""
    angles = np.arange(corners) * (2 * np.pi / corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def segmentation(instance: Instance) -> Any:
    """Return COCO's segmentation of an instance: polygons, or the run lengths of a crowd."""
    if not instance.iscrowd:
        return polygons(instance.mask)
    encoded = coco_mask.encode(np.asfortranarray(instance.mask, np.uint8))
    return {'size': encoded['size'], 'counts': encoded['counts'].decode()}


def polygons(mask: Mask) -> list[list[float]]:
    """Return polygons [x0, y0, x1, y1, …] in pixels that together cover a mask to half a pixel.

    COCO's polygons have no holes: a mask with a hole is cut in two along a column through it,
    recursively.
    """
    # On a finer grid, contours follow the edges of pixels, not their centres.
    fine = mask.astype(np.uint8).repeat(SUBPIXELS, axis=0).repeat(SUBPIXELS, axis=1)
    contours, hierarchy = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    for contour, relatives in zip(contours, hierarchy[0], strict=True):
        parent = relatives[3]
        if parent >= 0:  # the contour is a hole
            left, _, width, _ = cv2.boundingRect(contour)
            column = (left + width // 2) // SUBPIXELS
            is_left = np.arange(mask.shape[1]) < column
            return polygons(mask & is_left) + polygons(mask & ~is_left)
    found = []
    for contour in contours:
        outline = cv2.approxPolyDP(contour, SUBPIXELS / 2, closed=True)
        found.append(((outline.ravel() + 0.5) / SUBPIXELS).tolist())
    return found


def write_dataset(
    out: str | Path,
    images: int,
    val_images: int | None = None,
    size: tuple[int, int] = (192, 160),
    seed: int = 0,
) -> bool:
    """Write training and validation images in all layouts.

    Args:
        out: folder, which appears when the data set is complete.
        images: number of training scenes; every class folder has a quarter as many images, and at
            least four.
        val_images: the same of validation scenes; None: a fifth of `images`.
        size: (width, height) of the scenes in pixels.
        seed: seed of the scenes.

    Returns:
        False if `out` already holds a data set with these options, so that nothing was done.

    Raises:
        UsageError: `out` holds other files.
    """
    if val_images is None:
        val_images = max(1, images // 5)
    options = {
        'images': images,
        'val_images': val_images,
        'size': size,
        'seed': seed,
        'drawing': DRAWING_VERSION,
    }
    out = Path(out)
    record = json.dumps(options) + '\n'
    if out.is_dir() and any(out.iterdir()):
        if (out / 'shapes.json').is_file() and (out / 'shapes.json').read_text() == record:
            return False
        raise UsageError(f'{out}: expected a new or empty folder, or this data set')
    val = range(FIRST_VAL, FIRST_VAL + val_images)
    with complete_folder(out) as folder:
        for split, ade_split, indices in (
            ('train', 'training', range(images)),
            ('val', 'validation', val),
        ):
            _write_scenes(folder, split, ade_split, indices, size, seed)
            _write_class_folders(folder, split, indices, seed)
        (folder / 'shapes.json').write_text(record)
    return True


def _write_scenes(
    root: Path, split: str, ade_split: str, indices: range, size: tuple[int, int], seed: int
) -> None:
    """Write the scenes `indices` as COCO instances and as label maps.

    Image ids are one higher than the indices: COCOeval takes an id of 0 for none.
    """
    width, height = size
    categories = [{'id': number, 'name': name} for number, name in enumerate(CLASSES, 1)]
    images = []
    annotations: list[dict[str, Any]] = []
    for index in tqdm(indices, f'drawing {split}', leave=False, disable=None):
        scene = draw_scene(seed, index, size)
        image_id = index + 1
        name = f'{image_id:012d}'
        images.append(
            {'id': image_id, 'file_name': f'{name}.jpg', 'width': width, 'height': height}
        )
        labels = np.zeros((height, width), np.uint8)  # 0 is background, as in ADE20K
        for instance in scene.instances:
            category_id = instance.class_index + 1
            labels[instance.mask] = category_id
            annotation = {
                'id': len(annotations) + 1,
                'image_id': image_id,
                'category_id': category_id,
                'bbox': list(cv2.boundingRect(instance.mask.astype(np.uint8))),
                'area': int(instance.mask.sum()),
                'segmentation': segmentation(instance),
                'iscrowd': int(instance.iscrowd),
            }
            annotations.append(annotation)
        _save(root / f'coco/{split}2017/{name}.jpg', scene.image)
        _save(root / f'ade/images/{ade_split}/{name}.jpg', scene.image)
        _save(root / f'ade/annotations/{ade_split}/{name}.png', labels)
    content = {'images': images, 'categories': categories, 'annotations': annotations}
    path = root / f'coco/annotations/instances_{split}2017.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _write_class_folders(root: Path, split: str, indices: range, seed: int) -> None:
    """Write images of one shape into a folder per class, a quarter as many as there are scenes."""
    number_of_images = max(4, len(indices) // 4)
    for class_index, class_name in enumerate(CLASSES):
        for index in range(indices[0], indices[0] + number_of_images):
            single = draw_scene(seed, index, (SINGLE_SIDE, SINGLE_SIDE), class_index)
            _save(root / f'classes/{split}/{class_name}/{index + 1:012d}.jpg', single.image)


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an RGB image or a label map, and its folder; OpenCV expects BGR."""
    if image.ndim == 3:
        image = image[..., ::-1]
    quality = []
    if path.suffix == '.jpg':
        quality = [cv2.IMWRITE_JPEG_QUALITY, 92]
    _, data = cv2.imencode(path.suffix, image, quality)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='mmpola.openmmlab.shapes',
        description='Draw a data set of shapes in three layouts: OUT/coco, OUT/ade and OUT/classes',
    )
    parser.add_argument(
        'out', metavar='OUT', help='folder to write; it appears when the data set is complete'
    )
    parser.add_argument(
        '--images', type=int, default=600, metavar='N', help='training scenes (default: 600)'
    )
    args = parser.parse_args()
    if write_dataset(args.out, args.images):
        print(f'wrote {args.out}')
    else:
        print(f'{args.out} already holds this data set: nothing to do')


if __name__ == '__main__':
    run_main(main)
