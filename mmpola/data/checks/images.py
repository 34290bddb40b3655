"""Whether an image file can be read to its last byte, and its size as training loads it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError

ORIENTATION = 0x0112
"""The EXIF tag of a camera's orientation."""

TURNED = (5, 6, 7, 8)
"""Values of that tag that swap width and height."""


def unreadable(path: Path) -> str | None:
    """Return why an image cannot be read, None if it can. All of the file is read, a JPEG at an eighth of its size."""
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
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        return str(error) or type(error).__name__
    return None


def size_as_loaded(path: Path) -> tuple[int, int] | None:
    """Return (width, height) in pixels as training loads an image, rotated by its EXIF tag; None if it is broken."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            return (height, width) if image.getexif().get(ORIENTATION) in TURNED else (width, height)
    except OSError:
        return None
