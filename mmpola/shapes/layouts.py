"""Writers of the three layouts; each writes one split ('train' or 'val'), scene by scene."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from mmpola.shapes.outline import CLASSES
from mmpola.shapes.region import box, polygons, run_lengths
from mmpola.shapes.scene import Instance, Scene

_JPEG_QUALITY = 92
_CROP_SIDE = 64  # pixels of a written crop
_CROP_MARGIN = 1.3  # side of the cropped square, relative to the longer side of the object's box
_MOST_OF_OTHERS = 0.1  # share of a crop that other objects may fill
_SMALLEST_CROPPED = 20  # pixels of an object's longer side: smaller ones are unrecognisable at _CROP_SIDE


def jpeg(image: NDArray[Any]) -> bytes:
    """Encode an RGB image, uint8 [H, W, 3], as a JPEG file."""
    _, data = cv2.imencode('.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return data.tobytes()


def file_stem(image_id: int) -> str:
    return f'{image_id:012d}'


class CocoInstances:
    """`train2017/*.jpg`, `val2017/*.jpg` and `annotations/instances_{train,val}2017.json`."""

    def __init__(self, root: Path, split: str) -> None:
        self.images_folder = root / f'{split}2017'
        self.annotations_file = root / 'annotations' / f'instances_{split}2017.json'
        self.images_folder.mkdir(parents=True)
        self.annotations_file.parent.mkdir(exist_ok=True)
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def add(self, image_id: int, scene: Scene, image_bytes: bytes) -> None:
        name = f'{file_stem(image_id)}.jpg'
        (self.images_folder / name).write_bytes(image_bytes)
        height, width = scene.image.shape[:2]
        self.images.append({'id': image_id, 'file_name': name, 'width': width, 'height': height, 'license': 1})
        self.annotations += [
            {
                'id': len(self.annotations) + number,
                'image_id': image_id,
                'category_id': instance.class_index + 1,
                'bbox': box(instance.mask),
                'area': int(instance.mask.sum()),
                'segmentation': run_lengths(instance.mask) if instance.iscrowd else polygons(instance.mask),
                'iscrowd': int(instance.iscrowd),
            }
            for number, instance in enumerate(scene.instances, start=1)
        ]

    def finish(self) -> None:
        content = {
            'info': {'description': 'Shapes, drawn by mmpola.shapes', 'version': '1.0'},
            'licenses': [{'id': 1, 'name': 'CC0 1.0', 'url': 'https://creativecommons.org/publicdomain/zero/1.0/'}],
            'images': self.images,
            'categories': [
                {'id': number, 'name': name, 'supercategory': 'shape'} for number, name in enumerate(CLASSES, start=1)
            ],
            'annotations': self.annotations,
        }
        self.annotations_file.write_text(json.dumps(content))


class LabelMaps:
    """ADE20K's `images/{training,validation}/*.jpg` and `annotations/.../*.png`: 0 is background, 1..6 the classes."""

    def __init__(self, root: Path, split: str) -> None:
        folder = {'train': 'training', 'val': 'validation'}[split]
        self.images_folder = root / 'images' / folder
        self.labels_folder = root / 'annotations' / folder
        self.images_folder.mkdir(parents=True)
        self.labels_folder.mkdir(parents=True)

    def add(self, image_id: int, scene: Scene, image_bytes: bytes) -> None:
        labels = np.zeros(scene.image.shape[:2], np.uint8)
        for instance in scene.instances:
            labels[instance.mask] = instance.class_index + 1
        _, png = cv2.imencode('.png', labels)
        (self.images_folder / f'{file_stem(image_id)}.jpg').write_bytes(image_bytes)
        (self.labels_folder / f'{file_stem(image_id)}.png').write_bytes(png.tobytes())


class ClassFolders:
    """`{train,val}/CLASS/*.jpg`: square crops, each of one object, with little of any other in it."""

    def __init__(self, root: Path, split: str) -> None:
        self.root = root / split
        self.count = dict.fromkeys(CLASSES, 0)
        for name in CLASSES:
            (self.root / name).mkdir(parents=True)

    def add(self, image_id: int, scene: Scene) -> None:
        occupied = np.zeros(scene.image.shape[:2], bool)
        for instance in scene.instances:
            occupied |= instance.mask
        for number, instance in enumerate(scene.instances):
            crop = _square_around(instance)
            others = occupied[crop] & ~instance.mask[crop]
            if instance.iscrowd or max(box(instance.mask)[2:]) < _SMALLEST_CROPPED or others.mean() > _MOST_OF_OTHERS:
                continue
            name = CLASSES[instance.class_index]
            image = cv2.resize(scene.image[crop], (_CROP_SIDE, _CROP_SIDE), interpolation=cv2.INTER_AREA)
            (self.root / name / f'{file_stem(image_id)}_{number}.jpg').write_bytes(jpeg(image))
            self.count[name] += 1


def _square_around(instance: Instance) -> tuple[slice, slice]:
    """Return rows and columns of a square around the object's box, shifted into the image."""
    height, width = instance.mask.shape
    x, y, box_width, box_height = box(instance.mask)
    side = min(round(_CROP_MARGIN * max(box_width, box_height)), width, height)
    left = min(max(x + (box_width - side) // 2, 0), width - side)
    top = min(max(y + (box_height - side) // 2, 0), height - side)
    return slice(top, top + side), slice(left, left + side)
