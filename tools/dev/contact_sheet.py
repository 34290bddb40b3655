"""Arranges the first images of a folder on one sheet.

python tools/dev/contact_sheet.py FOLDER SHEET.png [--images 8] [--columns 2] [--width 640]
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
from pathlib import Path

from PIL import Image

from mmpola.data.read_image import IMAGE_SUFFIXES
from mmpola.messages import UsageError, run_main


def contact_sheet(folder: Path, images: int, columns: int, width: int) -> Image.Image:
    """Arrange the first `images` files by name, each `width` pixels wide, in rows of `columns`.

    Raises:
        UsageError: the folder has no images.
    """
    paths = (
        sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES) if folder.is_dir() else []
    )
    if not paths:
        raise UsageError(f'{folder}: no images in this folder')
    tiles = []
    for path in paths[:images]:
        with Image.open(path) as image:
            tiles.append(image.convert('RGB').resize((width, round(image.height * width / image.width))))
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) for row in rows]
    sheet = Image.new('RGB', (columns * width, sum(heights)), 'white')
    for index, row in enumerate(rows):
        for column, tile in enumerate(row):
            sheet.paste(tile, (column * width, sum(heights[:index])))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description='Arrange the first images of a folder on one sheet')
    parser.add_argument('folder', type=Path)
    parser.add_argument('sheet', type=Path, help='image to write')
    parser.add_argument('--images', type=int, default=8)
    parser.add_argument('--columns', type=int, default=2)
    parser.add_argument('--width', type=int, default=640, help='width of each image on the sheet, in pixels')
    args = parser.parse_args()
    contact_sheet(args.folder, args.images, args.columns, args.width).save(args.sheet)


if __name__ == '__main__':
    run_main(main)
