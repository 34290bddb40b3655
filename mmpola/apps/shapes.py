"""A small generated data set of shapes, to try mmpola without a download.

    python -m mmpola.apps.shapes OUT --images 600

draws seeded scenes of six shapes and writes them for detection as COCO instances (`OUT/coco`), for
segmentation as label maps in ADE20K's layout (`OUT/ade`) and for classification, one shape per
image, in class folders (`OUT/classes`). A second run with the same options does nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from mmpola.apps.shape_scenes import CLASSES, SUBPIXELS, Mask, draw_scene
from mmpola.cache import complete_folder
from mmpola.messages import UsageError, run_main

DRAWING_VERSION = 2
"""Version of the drawing code: increase it when the same options give different images."""

FIRST_VAL = 1_000_000
"""Index of the first validation scene."""

SINGLE_SIDE = 64
"""Side of an image of one shape in pixels."""


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


def run_lengths(mask: Mask) -> dict[str, list[int]]:
    """Return COCO's uncompressed run lengths of a mask.

    They go by column and alternate between zeros and ones, zeros first.
    """
    pixels = mask.ravel(order='F')
    changes = np.flatnonzero(np.diff(pixels)) + 1
    counts = np.diff([0, *changes.tolist(), pixels.size]).tolist()
    if pixels[0]:
        counts.insert(0, 0)
    return {'size': list(mask.shape), 'counts': counts}


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
    train = range(images)
    val = range(FIRST_VAL, FIRST_VAL + val_images)
    with complete_folder(out) as folder:
        _write_scenes(folder, 'train', 'training', train, size, seed)
        _write_scenes(folder, 'val', 'validation', val, size, seed)
        _write_class_folders(folder, 'train', train, seed)
        _write_class_folders(folder, 'val', val, seed)
        (folder / 'shapes.json').write_text(record)
    return True


def _write_scenes(
    root: Path, split: str, ade_split: str, indices: range, size: tuple[int, int], seed: int
) -> None:
    """Write the scenes `indices` as COCO instances and as label maps.

    Image ids are one higher than the indices: COCOeval takes an id of 0 for none.
    """
    photos = root / f'coco/{split}2017'
    ade_photos = root / f'ade/images/{ade_split}'
    maps = root / f'ade/annotations/{ade_split}'
    for folder in (photos, ade_photos, maps):
        folder.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in tqdm(indices, f'drawing {split}', leave=False, disable=None):
        scene = draw_scene(seed, index, size)
        image_id = index + 1
        name = f'{image_id:012d}'
        height, width = scene.image.shape[:2]
        images.append(
            {
                'id': image_id,
                'file_name': f'{name}.jpg',
                'width': width,
                'height': height,
                'license': 1,
            }
        )
        labels = np.zeros((height, width), np.uint8)  # 0 is background, as in ADE20K
        for instance in scene.instances:
            category_id = instance.class_index + 1
            labels[instance.mask] = category_id
            segmentation: Any
            if instance.iscrowd:
                segmentation = run_lengths(instance.mask)
            else:
                segmentation = polygons(instance.mask)
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': image_id,
                    'category_id': category_id,
                    'bbox': list(cv2.boundingRect(instance.mask.astype(np.uint8))),
                    'area': int(instance.mask.sum()),
                    'segmentation': segmentation,
                    'iscrowd': int(instance.iscrowd),
                }
            )
        _save(photos / f'{name}.jpg', scene.image)
        _save(ade_photos / f'{name}.jpg', scene.image)
        _save(maps / f'{name}.png', labels)
    annotations_file = root / f'coco/annotations/instances_{split}2017.json'
    annotations_file.parent.mkdir(exist_ok=True)
    annotations_file.write_text(json.dumps(_coco_content(images, annotations)))


def _write_class_folders(root: Path, split: str, indices: range, seed: int) -> None:
    """Write images of one shape into a folder per class, a quarter as many as there are scenes."""
    number_of_images = max(4, len(indices) // 4)
    for class_index, class_name in enumerate(CLASSES):
        folder = root / 'classes' / split / class_name
        folder.mkdir(parents=True)
        for index in range(indices[0], indices[0] + number_of_images):
            single = draw_scene(seed, index, (SINGLE_SIDE, SINGLE_SIDE), class_index)
            _save(folder / f'{index + 1:012d}.jpg', single.image)


def _coco_content(
    images: list[dict[str, Any]], annotations: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of an annotation file in COCO layout."""
    categories = []
    for number, name in enumerate(CLASSES, 1):
        categories.append({'id': number, 'name': name, 'supercategory': 'shape'})
    licence = {
        'id': 1,
        'name': 'CC0 1.0',
        'url': 'https://creativecommons.org/publicdomain/zero/1.0/',
    }
    return {
        'info': {'description': 'Shapes, drawn by mmpola.apps.shapes', 'version': '1.0'},
        'licenses': [licence],
        'images': images,
        'categories': categories,
        'annotations': annotations,
    }


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an RGB image or a label map; OpenCV expects BGR."""
    if image.ndim == 3:
        image = image[..., ::-1]
    quality = []
    if path.suffix == '.jpg':
        quality = [cv2.IMWRITE_JPEG_QUALITY, 92]
    _, data = cv2.imencode(path.suffix, image, quality)
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
    run_main(main)
