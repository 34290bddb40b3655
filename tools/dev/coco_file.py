"""The file in COCO's format that the scripts for everyday photographs write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmdet.datasets import CocoDataset

from mmpola.files import write_atomically

CLASSES: tuple[str, ...] = CocoDataset.METAINFO['classes']

Entry = dict[str, Any]
"""An image or an annotation in COCO's format."""


def write_coco(images: list[Entry], annotations: list[list[Entry]], out: Path) -> tuple[int, int]:
    """Write images and the annotations of each of them; both get their numbers here.

    Returns:
        (number of annotations that are objects, number with `iscrowd` 1).
    """
    numbered = []
    everything: list[Entry] = []
    for image_id, (image, of_image) in enumerate(zip(images, annotations, strict=True), start=1):
        numbered.append(dict(id=image_id, **image))
        for annotation in of_image:
            everything.append(dict(id=len(everything) + 1, image_id=image_id, **annotation))
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, start=1)]
    content = dict(images=numbered, annotations=everything, categories=categories)
    write_atomically(out, json.dumps(content))
    crowds = sum(annotation['iscrowd'] for annotation in everything)
    return len(everything) - crowds, crowds
