"""A small generated data set of shapes, to try detection, segmentation and classification without a download.

    python -m mmpola.apps.shapes OUT --images 600

draws seeded scenes of six shapes and writes them as COCO instances (`OUT/coco`), as label maps in
ADE20K's layout (`OUT/ade`) and, one shape per image, in class folders (`OUT/classes`). A second run
with the same options does nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from mmpola.cache import complete_folder
from mmpola.messages import UsageError, run_main

try:
    import cv2
except ModuleNotFoundError:
    message = 'mmpola.apps.shapes needs OpenCV: pip install opencv-python'
    raise (SystemExit if __name__ == '__main__' else ImportError)(message) from None

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')

DRAWING = 2
"""Version of the drawing code: increase it when the same options give different images."""

Image = NDArray[np.uint8]
"""RGB [H, W, 3]."""
Mask = NDArray[np.bool_]
"""[H, W]."""

SIDES = (64, 2048)  # of an image, pixels
FIRST_VAL = (
    1_000_000  # index of the first validation scene, and the largest number of scenes of a split
)
SINGLE = 64  # side of an image of one shape, pixels
EMPTY_SCENES, CROWD_SCENES = 0.05, 0.08  # share of all scenes
SMALL_OBJECTS = 0.15  # share of all objects
LEAST_VISIBLE_SHARE, LEAST_VISIBLE_PIXELS = 0.3, 24  # of each object
PLACEMENTS = 30  # attempts before an object is omitted
FINE = 4  # sub-pixels per pixel side, of coverage and of polygons


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
    """An RGB image, uint8 [H, W, 3], and its instances, farthest first; their masks do not overlap."""

    image: Image
    instances: list[Instance]


def draw_scene(
    seed: int, index: int, size: tuple[int, int] = (192, 160), only: int | None = None
) -> Scene:
    """Draw scene number `index` of the series of a seed; the same arguments always give the same scene.

    Args:
        seed: seed of the series, 0 or more.
        index: number of the scene, 0 or more.
        size: (width, height) in pixels, each 64 to 2048.
        only: draw a single large object of this class, an index into CLASSES; None: up to six of
            any class.

    Raises:
        UsageError: an argument is out of range.
    """
    for name, value in (('seed', seed), ('index', index)):
        if value < 0:
            raise UsageError(f'{name}: expected 0 or more, got {value}')
    if len(size) != 2 or not all(SIDES[0] <= side <= SIDES[1] for side in size):
        raise UsageError(
            f'size: expected width and height from {SIDES[0]} to {SIDES[1]} pixels, got {tuple(size)}'
        )
    rng = np.random.default_rng([seed, index, 0 if only is None else only + 1])
    painting = _Painting(rng, size)
    if only is not None:
        painting.add_object(only, single=True)
    elif (kind := rng.uniform()) >= EMPTY_SCENES:
        if kind < EMPTY_SCENES + CROWD_SCENES:
            painting.add_crowd()
        for _ in range(rng.integers(1, 7)):
            painting.add_object(int(rng.integers(len(CLASSES))))
    noisy = painting.image + rng.normal(0, 4, painting.image.shape)
    return Scene(np.clip(np.rint(noisy), 0, 255).astype(np.uint8), painting.instances)


class _Painting:
    """A scene that is being painted: instances, and an image, float32 [H, W, 3], at first a gradient with clouds."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.size = rng, size
        corners = rng.uniform(50, 205, 3) + rng.uniform(-45, 45, (2, 2, 3))
        clouds = rng.normal(0, 14, (size[1] // 12 + 2, size[0] // 12 + 2, 3))
        self.image = cv2.resize(corners, size).astype(np.float32)
        self.image += cv2.resize(clouds, size, interpolation=cv2.INTER_CUBIC).astype(np.float32)
        self.instances: list[Instance] = []

    def add_object(self, class_index: int, single: bool = False) -> None:
        """Paint an object at a place where enough of every earlier object stays visible; a single one is whole."""
        for _ in range(PLACEMENTS):
            small = not single and self.rng.uniform() < SMALL_OBJECTS
            smallest, largest = (0.5, 0.9) if single else (28 / min(self.size), 0.6)
            diameter = (
                self.rng.uniform(12, 24)
                if small
                else self.rng.uniform(smallest, largest) * min(self.size)
            )
            margin = (
                0.5 if single else 0.3
            ) * diameter  # the frame may cut an object of several, but not in half
            centre = self.rng.uniform(margin, np.subtract(self.size, margin))
            coverage = self._coverage(class_index, centre, diameter)
            mask = coverage >= 0.5
            if mask.sum() >= LEAST_VISIBLE_PIXELS and all(
                (other.mask & ~mask).sum()
                >= max(LEAST_VISIBLE_SHARE * other.pixels, LEAST_VISIBLE_PIXELS)
                for other in self.instances
            ):
                self._paint(coverage)
                self._cover(Instance(class_index, mask, int(mask.sum())))
                return

    def add_crowd(self) -> None:
        """Paint a cluster of tiny objects of one class as a single instance."""
        class_index = int(self.rng.integers(len(CLASSES)))
        radius = 0.25 * min(self.size)
        middle = self.rng.uniform(radius, np.subtract(self.size, radius))
        mask = np.zeros(self.image.shape[:2], bool)
        for _ in range(self.rng.integers(12, 31)):
            angle, distance = self.rng.uniform(0, 2 * np.pi), radius * np.sqrt(self.rng.uniform())
            centre = middle + distance * np.array([np.cos(angle), np.sin(angle)])
            coverage = self._coverage(class_index, centre, self.rng.uniform(9, 13))
            self._paint(coverage)
            mask |= coverage >= 0.5
        self._cover(Instance(class_index, mask, int(mask.sum()), iscrowd=True))

    def _coverage(
        self, class_index: int, centre: NDArray[np.float64], diameter: float
    ) -> NDArray[np.float32]:
        """Return the share of each pixel, [H, W] in 0 … 1, inside a shape turned by a random angle."""
        angle = self.rng.uniform(0, 2 * np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        fine = np.zeros((self.size[1] * FINE, self.size[0] * FINE), np.uint8)
        contours = [
            contour @ turn * (diameter / 2) + centre for contour in _outline(class_index, self.rng)
        ]
        cv2.fillPoly(
            fine, [np.rint(contour * FINE - 0.5).astype(np.int32) for contour in contours], 255
        )
        return cv2.resize(fine, self.size, interpolation=cv2.INTER_AREA).astype(
            np.float32
        ) / np.float32(255)

    def _paint(self, coverage: NDArray[np.float32]) -> None:
        """Paint a shape in the one of eight random colours that contrasts most with the pixels around it."""
        mask = coverage >= 0.5
        around = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8)).astype(bool) & ~mask
        colours = self.rng.uniform(0, 255, (8, 3)).astype(np.float32)
        distances = np.linalg.norm(self.image[around] - colours[:, None], axis=-1)
        # A low percentile, not the mean: the edge must be visible almost everywhere.
        colour = colours[np.percentile(distances, 15, axis=1).argmax()]
        self.image += coverage[..., None] * (colour - self.image)

    def _cover(self, instance: Instance) -> None:
        for other in self.instances:
            other.mask &= ~instance.mask
        self.instances.append(instance)


def _outline(class_index: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Return the contours of a class inside the unit circle, each [P, 2] as (x, y); the inside of two is a hole.

    Proportions that do not define the class (a star's depth, a ring's or a cross's thickness) are
    random.
    """
    match CLASSES[class_index]:
        case 'circle':
            return [_regular(64)]
        case 'square':
            return [_regular(4)]
        case 'triangle':
            return [_regular(3)]
        case 'star':
            return [_regular(10) * np.tile([1.0, rng.uniform(0.40, 0.50)], 5)[:, None]]
        case 'ring':
            return [_regular(64), _regular(64) * rng.uniform(0.50, 0.62)]
        case _:  # cross
            reach, half = 0.95, rng.uniform(0.24, 0.31)
            arm = np.array(
                [[half, half], [reach, half], [reach, -half]]
            )  # a quarter of the outline
            return [
                np.concatenate(
                    [arm @ np.linalg.matrix_power([[0, -1], [1, 0]], k) for k in range(4)]
                )
            ]


def _regular(corners: int) -> NDArray[np.float64]:
    angles = np.arange(corners) * (2 * np.pi / corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def polygons(mask: Mask) -> list[list[float]]:
    """Return polygons [x0, y0, x1, y1, …] in pixels that together cover a mask to half a pixel.

    COCO's polygons have no holes: a mask with a hole is cut in two along a column through it,
    recursively.
    """
    # On a finer grid, contours follow the edges of pixels, not their centres.
    fine = mask.astype(np.uint8).repeat(FINE, axis=0).repeat(FINE, axis=1)
    contours, parents = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    for contour, (*_, parent) in zip(contours, parents[0], strict=True):
        if parent >= 0:
            left, _, width, _ = cv2.boundingRect(contour)
            start = np.arange(mask.shape[1]) < (left + width // 2) // FINE
            return polygons(mask & start) + polygons(mask & ~start)
    outlines = [cv2.approxPolyDP(contour, FINE / 2, closed=True) for contour in contours]
    return [((outline.ravel() + 0.5) / FINE).tolist() for outline in outlines]


def run_lengths(mask: Mask) -> dict[str, list[int]]:
    """Return COCO's uncompressed run lengths of a mask: by column, zeros and ones alternating, zeros first."""
    pixels = mask.ravel(order='F')
    changes = np.flatnonzero(np.diff(pixels)) + 1
    counts = np.diff([0, *changes.tolist(), pixels.size]).tolist()
    return {'size': list(mask.shape), 'counts': [0, *counts] if pixels[0] else counts}


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
        UsageError: an argument is out of range, or `out` holds other files, or cannot be written.
    """
    if val_images is None:
        val_images = max(1, images // 5)
    for name, number in ('images', images), ('val_images', val_images):
        if not 1 <= number <= FIRST_VAL:
            raise UsageError(f'{name}: expected 1 to {FIRST_VAL}, got {number}')
    draw_scene(seed, 0, size)  # checks the other arguments
    options = {
        'images': images,
        'val_images': val_images,
        'size': size,
        'seed': seed,
        'drawing': DRAWING,
    }
    out, record = Path(out), json.dumps(options) + '\n'
    try:
        if out.is_file() or (out.is_dir() and any(out.iterdir())):
            if (out / 'shapes.json').is_file() and (out / 'shapes.json').read_text() == record:
                return False
            raise UsageError(
                f'{out}: expected a new or empty folder, or this data set, got one that holds other files'
            )
        with complete_folder(out) as folder:
            _write_split(folder, 'train', 'training', range(images), size, seed)
            _write_split(
                folder, 'val', 'validation', range(FIRST_VAL, FIRST_VAL + val_images), size, seed
            )
            (folder / 'shapes.json').write_text(record)
    except OSError as error:
        raise UsageError(f'{out}: expected a folder that can be written, got {error}') from None
    return True


def _write_split(
    root: Path, split: str, ade_split: str, indices: range, size: tuple[int, int], seed: int
) -> None:
    """Write the scenes `indices`, whose image ids are one higher: COCOeval takes an id of 0 for none."""
    coco, photos, maps = (
        root / name
        for name in (f'coco/{split}2017', f'ade/images/{ade_split}', f'ade/annotations/{ade_split}')
    )
    for folder in (coco, photos, maps):
        folder.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    console = Console(stderr=True)
    for index in track(
        indices,
        f'drawing {split}',
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ):
        scene, name = draw_scene(seed, index, size), f'{index + 1:012d}'
        height, width = scene.image.shape[:2]
        images.append(
            {
                'id': index + 1,
                'file_name': f'{name}.jpg',
                'width': width,
                'height': height,
                'license': 1,
            }
        )
        labels = np.zeros((height, width), np.uint8)  # 0 is background, as in ADE20K
        for instance in scene.instances:
            mask, number = instance.mask, instance.class_index + 1
            labels[mask] = number
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': index + 1,
                    'category_id': number,
                    'bbox': list(cv2.boundingRect(mask.astype(np.uint8))),
                    'area': int(mask.sum()),
                    'segmentation': run_lengths(mask) if instance.iscrowd else polygons(mask),
                    'iscrowd': int(instance.iscrowd),
                }
            )
        _save(coco / f'{name}.jpg', scene.image)
        _save(photos / f'{name}.jpg', scene.image)
        _save(maps / f'{name}.png', labels)
    content = {
        'info': {'description': 'Shapes, drawn by mmpola.apps.shapes', 'version': '1.0'},
        'licenses': [
            {
                'id': 1,
                'name': 'CC0 1.0',
                'url': 'https://creativecommons.org/publicdomain/zero/1.0/',
            }
        ],
        'images': images,
        'categories': [
            {'id': number, 'name': name, 'supercategory': 'shape'}
            for number, name in enumerate(CLASSES, 1)
        ],
        'annotations': annotations,
    }
    annotations_file = root / f'coco/annotations/instances_{split}2017.json'
    annotations_file.parent.mkdir(exist_ok=True)
    annotations_file.write_text(json.dumps(content))
    for only, name in enumerate(CLASSES):
        (root / 'classes' / split / name).mkdir(parents=True)
        for index in range(indices[0], indices[0] + max(4, len(indices) // 4)):
            single = draw_scene(seed, index, (SINGLE, SINGLE), only)
            _save(root / 'classes' / split / name / f'{index + 1:012d}.jpg', single.image)


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an RGB image or a label map; OpenCV expects BGR."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, 92] if path.suffix == '.jpg' else []
    _, data = cv2.imencode(path.suffix, image[..., ::-1] if image.ndim == 3 else image, quality)
    path.write_bytes(data.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='mmpola.apps.shapes',
        description='Draw a data set of shapes in three layouts: OUT/coco, OUT/ade and OUT/classes',
    )
    parser.add_argument(
        'out', metavar='OUT', help='folder to write; it appears when the data set is complete'
    )
    parser.add_argument(
        '--images', type=int, default=600, metavar='N', help='training scenes (default: 600)'
    )
    parser.add_argument(
        '--val-images',
        type=int,
        metavar='N',
        help='validation scenes (default: a fifth of --images)',
    )
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=(192, 160),
        metavar=('W', 'H'),
        help='pixels (default: 192 160)',
    )
    parser.add_argument(
        '--seed', type=int, default=0, metavar='S', help='seed of the scenes (default: 0)'
    )
    args = parser.parse_args()
    if write_dataset(args.out, args.images, args.val_images, tuple(args.size), args.seed):
        print(f'wrote {args.out}')
    else:
        print(f'{args.out} already holds this data set: nothing to do')


if __name__ == '__main__':
    run_main(main, 'interrupted, nothing written')
