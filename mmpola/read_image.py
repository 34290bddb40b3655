"""Find, decode and measure image files, and name the files of their results."""

from __future__ import annotations

import glob
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

RARE_IMAGE_SUFFIXES = ('.avif', '.gif', '.heic', '.heif', '.jp2', '.jxl')
"""Lower-case suffixes of images that OpenCV or Pillow may be unable to read."""

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
    """List the images that files, folders and patterns name, each once.

    Args:
        arguments: files, folders (searched recursively for `IMAGE_SUFFIXES` and
            `RARE_IMAGE_SUFFIXES`) and patterns; a file that is named or matches a pattern may have
            any suffix.
        out: folder of the results, which is skipped if it is inside a searched folder.

    Raises:
        UsageError: an argument matches nothing, or results of two images would have the same name.
    """
    found: dict[Path, ImageFile] = {}
    path_of_result: dict[Path, Path] = {}
    for argument in arguments:
        for image in _matching_images(argument, out.resolve()):
            if image.path.resolve() in found:
                continue
            if image.result in path_of_result:
                raise UsageError(
                    f'{path_of_result[image.result]} and {image.path}: the results of both would '
                    f'be {out / image.result}.json'
                )
            path_of_result[image.result] = image.path
            found[image.path.resolve()] = image
    return list(found.values())


def _matching_images(argument: str, out: Path) -> list[ImageFile]:
    """List the images that one file, folder or pattern names, without those in `out`."""
    path = Path(argument)
    if path.is_file():
        return [ImageFile(path, Path(path.stem))]

    if path.is_dir():
        base = path
        suffixes = IMAGE_SUFFIXES + RARE_IMAGE_SUFFIXES
        candidates = [each for each in path.rglob('*') if each.suffix.lower() in suffixes]
        nothing = f'no images in this folder ({" ".join(IMAGE_SUFFIXES)})'
    else:
        base = _fixed_part(path)
        candidates = [Path(each) for each in glob.glob(argument, recursive=True)]
        if glob.has_magic(argument):
            nothing = 'no file matches this pattern'
        else:
            nothing = 'no such file or folder'

    images = []
    for candidate in sorted(candidates):
        is_result = out != base.resolve() and out in candidate.resolve().parents
        if candidate.is_file() and not is_result:
            images.append(ImageFile(candidate, candidate.relative_to(base).with_suffix('')))
    if not images:
        raise UsageError(f'{argument}: {nothing}')
    return images


def _fixed_part(pattern: Path) -> Path:
    """Return the folders of a pattern before the first part with a wildcard."""
    fixed = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def check_outputs(
    images: Iterable[ImageFile], out: Path, outputs: Iterable[Path], overwrite: bool
) -> None:
    """Check that results can be written.

    Args:
        images: the input images, which are never overwritten.
        out: folder of the results.
        outputs: files that will be written.
        overwrite: whether they may exist.

    Raises:
        UsageError: a file is where a folder is needed, or a result would replace an input image or,
            unless `overwrite`, any other file.
    """
    inputs = {image.path.resolve() for image in images}
    folders: dict[Path, None] = {}
    replaced = []
    existing = []
    for output in outputs:
        folders.update(dict.fromkeys(output.parents))
        if output.resolve() in inputs:
            replaced.append(output)
        if output.exists():
            existing.append(output)

    for folder in folders:
        if folder.is_file():
            raise UsageError(f'--out: expected a folder for the results, got the file {folder}')
    if replaced:
        raise UsageError(
            f'--out: {out}: results would overwrite the input images ({listed(replaced)})'
        )
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
    if reason is None:
        pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if pixels is not None:
            return pixels
        reason = 'not an image that OpenCV can read'
    suffix = path.suffix.lower()
    if suffix in RARE_IMAGE_SUFFIXES:
        reason += f'; {suffix} files may need to be converted to .png'
    raise UsageError(reason)


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
