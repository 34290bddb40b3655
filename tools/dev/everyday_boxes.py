"""Write the true boxes of the photographs that the everyday detector learns from and is judged on.

    python tools/dev/collect_photographs.py data/photographs --longer-side 480 \
        --table tools/dev/everyday_photographs.csv
    python tools/dev/everyday_boxes.py data/photographs

The collected photographs, data/photographs/coco, are COCO's val2017 under other names: N.jpg of
their repository is the photograph whose name is the N-th of 5,000 in order, counted from 0. (Looked
up by the boxes that PicoDet-S finds, 1,146 of 1,151 clear matches are at that place.) Their names
and their boxes come from two other repositories. Three files in COCO's format are written:

- FOLDER/train.json is for the collected photographs that are in neither of the other two files.
- FOLDER/val.json and FOLDER/test.json are for the 159 and 160 photographs of two small excerpts
  from COCO, which go to FOLDER/val and FOLDER/test. The detector is judged on them.

The list of boxes does not say which of them are crowds, as COCO's own file does. A box that holds
CROWD smaller ones of its class is taken for a crowd (`iscrowd` 1): a detector is trained neither to
find it nor to find nothing there. In val.json and test.json, where crowds are known, 24 boxes look
so; 21 of them are among the 30 crowds.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from mmpola.messages import run_main

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the modules beside this one

from tools.dev.coco_file import CLASSES, Entry, write_coco
from tools.dev.collect_photographs import bring, contents, git

PHOTOGRAPHS = ('Fernando-crz/image-search', '4e4fa8d42743ba9c2378e5faf5ef2c80e66cc85f')
BOXES = ('administrator2992/yolov4-mobilenetv3-pytorch', '087a9413549c17981a879086aa2b39e10692b195')
NAMES = ('AdamCuellar/PyTorch_YOLOv4', '24bed80c98d38ee0c0084a04a197926101fff7f3')
EXCERPTS = {
    'val': ('Obmutescence/COCO-MINI', '644f29e7c1d2eefd9c4412d39bc5b0ee6fd0afd4'),
    'test': ('zzowenzz/COCO_Tiny', 'e7a689f7d6d1a1908df287c3e79eccdadfdba1fe'),
}
"""Public Git repositories, each with a commit."""
CROWD = 6
INSIDE = 0.8  # of a box's area, at least, lies in the box that holds it
SMALLER = 0.5  # of the area of the box that holds it, at most


def read_boxes(text: str) -> dict[str, np.ndarray]:
    """Read lines `FOLDER/NAME.jpg x1,y1,x2,y2,class ...`, in pixels.

    Returns:
        for each NAME, integers [N, 5]: corners of the boxes, and indices of their classes.
    """
    boxes = {}
    for line in text.splitlines():
        path, *objects = line.split()
        numbers = [[int(number) for number in entry.split(',')] for entry in objects]
        boxes[Path(path).stem] = np.array(numbers)
    return boxes


def find_crowds(boxes: np.ndarray) -> np.ndarray:
    """Return which of the boxes [N, 5] (corners and class) hold CROWD smaller ones: bool [N]."""
    corners = boxes[:, :4]
    top_left = np.maximum(corners[:, None, :2], corners[None, :, :2])
    bottom_right = np.minimum(corners[:, None, 2:], corners[None, :, 2:])
    shared = (bottom_right - top_left).clip(0).prod(axis=2)
    area = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    same_class = boxes[:, None, 4] == boxes[None, :, 4]
    smaller = area[None] <= SMALLER * area[:, None]
    held = same_class & smaller & (shared >= INSIDE * area[None])
    return held.sum(axis=1) >= CROWD


def annotate(boxes: np.ndarray, factor: float) -> list[Entry]:
    """Return the annotations of boxes [N, 5] for a photograph that was resized by a factor."""
    annotations = []
    for box, crowd in zip(boxes, find_crowds(boxes), strict=True):
        left, top, right, bottom = (round(float(side) * factor, 1) for side in box[:4])
        width = round(right - left, 1)
        height = round(bottom - top, 1)
        annotations.append(
            dict(
                bbox=[left, top, width, height],
                area=round(width * height, 1),
                category_id=int(box[4]) + 1,
                iscrowd=int(crowd),
            )
        )
    return annotations


def write(images: list[Entry], annotations: list[list[Entry]], out: Path) -> None:
    """Write images and the annotations of each of them, and print how many there are."""
    boxes, crowds = write_coco(images, annotations, out)
    print(f'{out.name}: {len(images):,} photographs, {boxes:,} boxes, {crowds:,} crowds')


def write_excerpt(folder: Path, split: str, git_folder: Path, commit: str) -> set[str]:
    """Write the photographs and labels of an excerpt; return the photographs' names."""
    images: list[Entry] = []
    annotations: list[list[Entry]] = []
    (folder / split).mkdir(exist_ok=True)
    for half in ('train2017', 'val2017'):
        content = json.loads(git(git_folder, 'show', f'{commit}:annotations/instances_{half}.json'))
        number_of = {row['id']: CLASSES.index(row['name']) + 1 for row in content['categories']}
        for image in content['images']:
            of_image = []
            for annotation in content['annotations']:
                if annotation['image_id'] == image['id']:
                    kept = {key: annotation[key] for key in ('bbox', 'area', 'iscrowd')}
                    kept['category_id'] = number_of[annotation['category_id']]
                    of_image.append(kept)
            annotations.append(of_image)
            images.append({key: image[key] for key in ('file_name', 'width', 'height')})
            file_name = image['file_name']
            command = ['git', '-C', str(git_folder), 'show', f'{commit}:{half}/{file_name}']
            (folder / split / file_name).write_bytes(subprocess.check_output(command))
    write(images, annotations, folder / f'{split}.json')
    return {Path(image['file_name']).stem for image in images}


def name_photographs(git_folder: Path, names: list[str]) -> dict[str, str]:
    """Return COCO's names of the photographs in PHOTOGRAPHS, by their Git hashes."""
    name_of = {}
    for line in git(git_folder, 'ls-tree', '-r', PHOTOGRAPHS[1], 'images').splitlines():
        properties, path = line.split('\t')
        number = Path(path).stem
        if number.isdecimal() and int(number) < len(names):  # six more are not COCO's
            name_of[properties.split()[2]] = names[int(number)]
    return name_of


def write_train(
    folder: Path, git_folder: Path, name_of: dict[str, str], boxes: dict[str, np.ndarray]
) -> None:
    """Write train.json for the photographs of `name_of` (names by Git hashes)."""
    images: list[Entry] = []
    annotations: list[list[Entry]] = []
    with TemporaryDirectory() as temporary:
        hashes = Path(temporary) / 'hashes'
        hashes.write_text('\n'.join(sorted(name_of)))
        for name, data in contents(git_folder, hashes):
            with Image.open(io.BytesIO(data)) as original:
                original_width = original.width
            with Image.open(folder / 'coco' / f'{name}.jpg') as collected:
                width, height = collected.size
            of_image = []
            if name_of[name] in boxes:  # 48 photographs have none
                of_image = annotate(boxes[name_of[name]], width / original_width)
            annotations.append(of_image)
            images.append(dict(file_name=f'{name}.jpg', width=width, height=height))
    write(images, annotations, folder / 'train.json')


def main(arguments: list[str] | None = None) -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=Path, help='coco/ in it has the collected photographs')
    parser.add_argument('--mirror', type=Path, help='folder of repositories, as OWNER+NAME/repo')
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as temporary:
        place = {}
        for repository, commit in (PHOTOGRAPHS, BOXES, NAMES, *EXCERPTS.values()):
            fetched = Path(temporary) / repository.replace('/', '+')
            row = dict(repository=repository, commit=commit)
            place[repository] = bring(row, fetched, options.mirror)
        judged = set()
        for split, (repository, commit) in EXCERPTS.items():
            judged |= write_excerpt(options.folder, split, place[repository], commit)
        listed = git(place[NAMES[0]], 'show', f'{NAMES[1]}:data/val2017.txt')
        names = sorted(Path(path).stem for path in listed.split())
        name_of = name_photographs(place[PHOTOGRAPHS[0]], names)
        learned = {key: name for key, name in name_of.items() if name not in judged}
        boxes = read_boxes(git(place[BOXES[0]], 'show', f'{BOXES[1]}:coco_val.txt'))
        write_train(options.folder, place[PHOTOGRAPHS[0]], learned, boxes)


if __name__ == '__main__':
    run_main(main)
