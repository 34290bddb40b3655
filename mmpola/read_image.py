"""The suffixes of image files, decoding an image of any mode to RGB, and whether and in what size a file is read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from mmpola.messages import first_line

IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
"""Lower-case suffixes by which images in a folder are found. Without .gif: OpenCV reads it only since version 4.11."""

ORIENTATION = 0x0112
"""The EXIF tag of a camera's orientation."""

TURNED = (5, 6, 7, 8)
"""Values of that tag that swap width and height."""


def rgb_image(data: bytes) -> Image.Image:
    """Decode an image of any mode to RGB.

    16-bit greyscale keeps its upper 8 bits (Pillow's own conversion clips it to white) and
    transparency is dropped. Pixels stay as stored: an EXIF rotation is not applied, as in
    torchvision and timm, which gave the published numbers.

    Raises:
        Exception: Pillow cannot decode it; the type depends on the format.
    """
    with Image.open(io.BytesIO(data)) as file:
        file.load()
        image: Image.Image = file
        if image.mode.startswith('I'):
            image = Image.fromarray(
                (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            )
        elif 'transparency' in image.info:
            image = image.convert('RGBA')
        return image.convert('RGB')


def unreadable(path: Path) -> str | None:
    """Return why an image cannot be read, None if it can. Reads the whole file, but decodes a JPEG at reduced size."""
    if not path.is_file():
        return 'no such file'
    if path.stat().st_size == 0:
        return 'empty file'
    try:
        with Image.open(path) as image:
            image.draft('L', (1, 1))
            image.load()
    except UnidentifiedImageError:
        return 'not an image'
    except (
        Exception
    ) as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return first_line(error)
    return None


def size_as_loaded(path: Path) -> tuple[int, int] | None:
    """Return (width, height) in pixels as OpenMMLab loads an image, rotated by its EXIF tag; None if it is broken."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            return (
                (height, width) if image.getexif().get(ORIENTATION) in TURNED else (width, height)
            )
    except Exception:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return None
