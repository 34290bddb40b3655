"""Find, decode and measure image files."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from mmpola.messages import UsageError, first_line, listed

IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
"""Lower-case suffixes of image files. Without .gif: OpenCV reads it only since version 4.11."""

EXIF_ORIENTATION = 0x0112
"""The EXIF tag of a camera's orientation."""

SIDEWAYS_ORIENTATIONS = (5, 6, 7, 8)
"""Values of that tag that swap width and height."""


class ImageFile(NamedTuple):
    """An image file, and the path of its results inside the folder of results, without a suffix."""

    path: Path
    result: Path

    def output(self, folder: Path, suffix: str) -> Path:
        """Return the path of a result in a folder of results."""
        return folder / self.result.parent / f'{self.result.name}{suffix}'


def find_images(arguments: list[str], out: Path) -> list[ImageFile]:
    """List the images that files and folders name.

    Args:
        arguments: files, and folders, which are searched recursively for `IMAGE_SUFFIXES`.
        out: folder of the results, which is skipped if it is inside a searched folder.

    Raises:
        UsageError: there is no such file or folder, or no image in a folder.
    """
    images = []
    results = out.resolve()
    for argument in arguments:
        path = Path(argument)
        base = path.parent
        found = [path]
        if path.is_dir():
            base = path
            found = []
            folder = path.resolve()
            for file in sorted(path.rglob('*')):
                is_result = results in (folder / file.relative_to(path)).parents
                if file.suffix.lower() in IMAGE_SUFFIXES and not is_result:
                    found.append(file)
        elif not path.exists():
            raise UsageError(f'{argument}: no such file or folder')
        if not found:
            raise UsageError(f'{argument}: no images in this folder ({" ".join(IMAGE_SUFFIXES)})')
        for file in found:
            images.append(ImageFile(file, file.relative_to(base).with_suffix('')))
    return images


def check_outputs(outputs: Iterable[Path], overwrite: bool) -> None:
    """Raise UsageError if some of the files that will be written exist, unless `overwrite`."""
    existing = [output for output in outputs if output.exists()]
    if existing and not overwrite:
        raise UsageError(
            f'--out: {len(existing)} of the results exist already ({listed(existing)}); '
            'choose another folder, or allow overwriting with --overwrite'
        )


def read_pixels(path: Path) -> NDArray[Any]:
    """Read an image to its last byte, BGR uint8 [H, W, 3].

    Raises:
        UsageError: it cannot be read; the message is the reason and does not name the file.
    """
    reason = unreadable(path)
    if reason is not None:
        raise UsageError(reason)
    pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if pixels is None:
        raise UsageError('not an image that OpenCV can read')
    return pixels


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
            upper_bits = np.asarray(image).astype(np.int64) >> 8
            image = Image.fromarray(upper_bits.clip(0, 255).astype(np.uint8))
        elif 'transparency' in image.info:
            image = image.convert('RGBA')
        return image.convert('RGB')


def unreadable(path: Path) -> str | None:
    """Return why an image cannot be read, None if it can.

    Reads the whole file, but decodes a JPEG at reduced size.
    """
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
    except Exception as error:  # decoders raise many types for a broken file
        return first_line(error)
    return None


def size_as_loaded(path: Path) -> tuple[int, int] | None:
    """Return (width, height) in pixels as OpenMMLab loads an image, None if it is broken.

    OpenMMLab rotates an image as its EXIF tag says.
    """
    try:
        with Image.open(path) as image:
            width, height = image.size
            orientation = image.getexif().get(EXIF_ORIENTATION)
    except Exception:  # decoders raise many types for a broken file
        return None
    if orientation in SIDEWAYS_ORIENTATIONS:
        return height, width
    return width, height
