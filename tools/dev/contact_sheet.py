"""Arranges the first 12 images of a folder on one sheet, in four columns.

python tools/dev/contact_sheet.py FOLDER SHEET.png
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path

from PIL import Image, ImageOps
from torchvision.transforms.functional import to_tensor
from torchvision.utils import save_image

from mmpola.images import IMAGE_SUFFIXES
from mmpola.messages import UsageError, run_main

IMAGES = 12
COLUMNS = 4
SIZE = (384, 320)
"""Width and height in pixels into which each image is fitted; generated scenes are 192 x 160."""
GAP = 8
"""White pixels between the images."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Arrange the first images of a folder on one sheet'
    )
    parser.add_argument('folder', type=Path)
    parser.add_argument('sheet', type=Path, help='image to write')
    args = parser.parse_args()
    paths = [path for path in args.folder.glob('*') if path.suffix.lower() in IMAGE_SUFFIXES]
    if not paths:
        raise UsageError(f'{args.folder}: no images in this folder')
    tiles = []
    for path in sorted(paths)[:IMAGES]:
        with Image.open(path) as image:
            tile = ImageOps.pad(image.convert('RGB'), SIZE, color='white')
        tiles.append(to_tensor(tile))
    save_image(tiles, args.sheet, nrow=COLUMNS, padding=GAP, pad_value=1.0)


if __name__ == '__main__':
    run_main(main)
