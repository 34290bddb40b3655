"""Input images and the files of their results: finding, checking and reading them."""

from __future__ import annotations

import glob
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import cv2
from numpy.typing import NDArray

from mmpola.messages import UsageError, listed
from mmpola.read_image import IMAGE_SUFFIXES, unreadable

OTHER_SUFFIXES = ('.avif', '.gif', '.heic', '.heif', '.jp2', '.jxl')
"""Lower-case suffixes of images that OpenCV or Pillow may be unable to read; in a folder, they are tried."""


class ImageFile(NamedTuple):
    """An image file, and the path of its results below --out, without a suffix."""

    path: Path
    result: Path

    def output(self, out: Path, suffix: str) -> Path:
        """Return the path of a result in the folder `out`."""
        return out / self.result.parent / f'{self.result.name}{suffix}'


def find_images(arguments: list[str], out: Path) -> list[ImageFile]:
    """List the images that files, folders and patterns name, each once.

    Args:
        arguments: files, folders (searched recursively for `IMAGE_SUFFIXES` and `OTHER_SUFFIXES`)
            and patterns; a file that is named or matches a pattern may have any suffix.
        out: folder of the results, which is skipped if it is inside a searched folder.

    Raises:
        UsageError: an argument matches nothing, or results of two images would have the same name.
    """
    found: dict[Path, ImageFile] = {}
    taken: dict[Path, Path] = {}
    for argument in arguments:
        for path, result in _expand(argument, out.resolve()):
            if path.resolve() in found:
                continue
            if result in taken:
                raise UsageError(
                    f'{taken[result]} and {path}: the results of both would be {out / result}.json'
                )
            taken[result] = path
            found[path.resolve()] = ImageFile(path, result)
    return list(found.values())


def _expand(argument: str, out: Path) -> list[tuple[Path, Path]]:
    """List (image, path of its results) for one argument, without images in `out`."""
    path = Path(argument)
    if path.is_file():
        return [(path, Path(path.stem))]
    if path.is_dir():
        suffixes = IMAGE_SUFFIXES + OTHER_SUFFIXES
        paths = sorted(p for p in path.rglob('*') if p.suffix.lower() in suffixes and p.is_file())
        base, nothing = path, f'no images in this folder ({" ".join(IMAGE_SUFFIXES)})'
    else:
        paths = sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if p.is_file())
        base = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        nothing = (
            'no such file or folder'
            if not glob.has_magic(argument)
            else 'no file matches this pattern'
        )
    if out != base.resolve():
        paths = [p for p in paths if out not in p.resolve().parents]
    if not paths:
        raise UsageError(f'{argument}: {nothing}')
    return [(p, p.relative_to(base).with_suffix('')) for p in paths]


def check_outputs(
    images: list[ImageFile], out: Path, suffixes: tuple[str, ...], overwrite: bool
) -> None:
    """Check that the results can be written into `out`.

    Raises:
        UsageError: a file is where a folder is needed, or a result would replace an input image or,
            without --overwrite, any other file.
    """
    read = {image.path.resolve() for image in images}
    outputs = [image.output(out, suffix) for image in images for suffix in suffixes]
    folders = dict.fromkeys(folder for path in outputs for folder in path.parents)
    if blocking := [folder for folder in folders if folder.is_file()]:
        raise UsageError(f'--out: expected a folder for the results, got the file {blocking[0]}')
    if replaced := [path for path in outputs if path.resolve() in read]:
        raise UsageError(
            f'--out: {out}: results would overwrite the input images ({listed(replaced)})'
        )
    existing = [] if overwrite else [path for path in outputs if path.exists()]
    if existing:
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
    pixels = None if reason else cv2.imread(str(path), cv2.IMREAD_COLOR)
    if pixels is None:
        suffix = path.suffix.lower()
        hint = (
            f'; {suffix} files may need to be converted to .png' if suffix in OTHER_SUFFIXES else ''
        )
        raise UsageError(f'{reason or "not an image that OpenCV can read"}{hint}')
    return pixels
