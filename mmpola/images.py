"""Find, name, decode and encode image files; what the numbers in images stand for."""

from __future__ import annotations

import colorsys
import contextlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch import Tensor

from mmpola.messages import UsageError, counted, listed

IMAGE_SUFFIXES = (
    *('.bmp', '.jfif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp'),
)
"""Lower-case suffixes of image files. Without .gif: OpenCV reads it only since version 4.11."""

NO_IMAGES = (
    *('.cfg', '.csv', '.db', '.html', '.ini', '.json', '.jsonl', '.log', '.md', '.names', '.pdf'),
    *('.py', '.sh', '.toml', '.tsv', '.txt', '.xml', '.yaml', '.yml'),
)
"""Lower-case suffixes of what may lie beside images: nobody expects that it is read as one."""

Values = TypeVar('Values', NDArray[Any], Tensor)

WEIGHTS_SUFFIXES = ('.ckpt', '.pt', '.pth', '.safetensors')
"""Suffixes of checkpoints, which a pattern of a shell may name among the images."""


class FolderImages(NamedTuple):
    """What is in a folder and below it, as paths inside it; hidden files and folders are not.

    Attributes:
        paths: the images, by their suffix in capitals or not, in the order of their names.
        left_out: other files, except with a suffix in `NO_IMAGES`.
        repeated: folders that links lead to again, whose images are listed once, and where.
    """

    paths: list[str]
    left_out: list[str]
    repeated: dict[str, str]

    def others(self) -> str | None:
        """Describe the files that were left out: '18 files (.gif, .heic)'; None without one."""
        if not self.left_out:
            return None
        suffixes = sorted({os.path.splitext(path)[1] or 'no suffix' for path in self.left_out})
        return f'{counted(len(self.left_out), "file")} ({", ".join(suffixes)})'


def images_below(folder: str | Path, suffixes: Iterable[str] = IMAGE_SUFFIXES) -> FolderImages:
    """Find the images in a folder and below it. Links are followed.

    Args:
        folder: an existing folder.
        suffixes: ends of the names of images, in lower case.

    Raises:
        OSError: a folder cannot be read.
    """
    root = str(folder)
    suffixes = tuple(suffixes)
    found = FolderImages([], [], {})
    seen: dict[str, str] = {}
    for place, inner, files in os.walk(root, onerror=_fail, followlinks=True):
        first = seen.setdefault(os.path.realpath(place), place)
        if first != place:
            found.repeated[place] = first
            inner.clear()
            continue
        # os.walk continues in these, in this order; Jupyter writes .ipynb_checkpoints
        inner[:] = sorted(name for name in inner if not name.startswith('.'))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(place, name), root)
            if name.startswith('.'):  # macOS writes ._photo.jpg
                continue
            if name.lower().endswith(suffixes):
                found.paths.append(path)
            elif not name.lower().endswith(NO_IMAGES):
                found.left_out.append(path)
    return found


def _fail(error: OSError) -> None:
    raise error


def photograph(name: str) -> str:
    """Return what the names of one photograph share: Roboflow's copies are NAME.rf.HASH.jpg."""
    return name.partition('.rf.')[0]


class ImageFile(NamedTuple):
    """An image file, and the path of its results inside the folder of results, without a suffix."""

    path: Path
    result: Path

    def output(self, folder: Path, suffix: str) -> Path:
        """Return the path of a result in a folder of results."""
        return folder / self.result.parent / f'{self.result.name}{suffix}'


def find_images(
    arguments: list[str], out: Path, suffixes: Iterable[str] = IMAGE_SUFFIXES
) -> list[ImageFile]:
    """List the images that files and folders name, each of them once; print what is left out.

    Results are named by the image's path inside the given folder, without a suffix. If two images
    would share a name, all are named by `name_results`.

    Args:
        arguments: files, and folders, which are searched recursively.
        out: folder of the results, which is skipped if it is inside a searched folder.
        suffixes: ends of the names of image files in folders, in lower case.

    Raises:
        UsageError: there is no such file or folder, no image in a folder, or a checkpoint in place
            of an image.
    """
    suffixes = tuple(sorted(suffixes))
    files: dict[str, tuple[Path, Path]] = {}
    results = out.resolve()
    for argument in arguments:
        path = Path(argument)
        base = path.parent
        found = [path]
        if path.is_dir():
            base = path
            found = []
            inside = images_below(path, suffixes)
            folder = path.resolve()
            for inner in sorted(map(Path, inside.paths)):
                if results not in (folder / inner).parents:
                    found.append(path / inner)
            if inside.left_out:
                print(f'{argument}: left out: {inside.others()}')
        elif not path.exists():
            raise UsageError(f'{argument}: no such file or folder')
        elif path.suffix in WEIGHTS_SUFFIXES and path.suffix not in suffixes:
            raise UsageError(
                f'IMAGES: expected image files and folders, got a second checkpoint, {argument}; '
                'name the one to use, where a pattern such as best_*.pth finds several'
            )
        if not found:
            raise UsageError(f'{argument}: no images in this folder ({" ".join(suffixes)})')
        for file in found:
            files.setdefault(os.path.abspath(file), (file, base))
    paths = [file for file, _ in files.values()]
    names = [file.relative_to(base).with_suffix('') for file, base in files.values()]
    if len(set(names)) < len(names):
        names = name_results(paths)
    return [ImageFile(file, name) for file, name in zip(paths, names, strict=True)]


def name_results(paths: Sequence[Path]) -> list[Path]:
    """Return the path of each file's results: its own path inside the common folder of all.

    The names have no suffix if they differ without it; with a.jpg beside a.png, all keep theirs.

    Args:
        paths: of different files, at least one.
    """
    files = [Path(os.path.abspath(path)) for path in paths]
    common = os.path.commonpath([file.parent for file in files])
    names = [file.relative_to(common) for file in files]
    stems = [name.with_suffix('') for name in names]
    if len(set(stems)) == len(stems):
        return stems
    return names


def check_outputs(
    outputs: Iterable[Path],
    overwrite: bool,
    inputs: Iterable[ImageFile] = (),
    option: str = '--out',
) -> None:
    """Raise UsageError if some of the files that will be written exist, unless `overwrite`.

    Args:
        outputs: the files.
        overwrite: whether they may exist.
        inputs: images that are never overwritten, also not through a link.
        option: that names the folder of the files.
    """
    outputs = list(outputs)
    read = {os.path.realpath(image.path) for image in inputs}
    replaced = [output for output in outputs if os.path.realpath(output) in read]
    if replaced:
        raise UsageError(
            f'{option}: expected a folder apart from the images, got one whose results would '
            f'replace them ({listed(replaced)})'
        )
    # Not Path.exists, which raises an error for a name that is too long
    existing = [output for output in outputs if os.path.lexists(output)]
    if existing and not overwrite:
        raise UsageError(
            f'{option}: {len(existing)} of the results exist already ({listed(existing)}); '
            'choose another folder, or allow overwriting with --overwrite'
        )


def rgb_image(data: bytes) -> Image.Image:
    """Decode an image of any mode to RGB.

    16-bit greyscale keeps its upper 8 bits (Pillow's own conversion clips it to white) and
    transparency is dropped. Pixels stay as stored: an EXIF rotation is not applied, as in
    torchvision and timm, which gave the published numbers; the check `exif` counts such images.

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


def is_stored_turned(path: str | Path) -> bool:
    """Whether an image's EXIF tells viewers to turn or mirror it; False if it cannot be read."""
    with contextlib.suppress(Exception), Image.open(path) as file:
        return file.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    return False


def encoded(pixels: NDArray[Any], kind: str, **options: Any) -> bytes:
    """Return the content of an image file of a kind that Pillow knows."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def reads_bgr(preprocessor: Any) -> bool:
    """Whether a model of OpenMMLab reads blue first, as mmcv loads images."""
    for name in ('_channel_conversion', 'channel_conversion'):  # of mmdet and mmseg
        if hasattr(preprocessor, name):
            return not getattr(preprocessor, name)
    return False


def mean_and_std(*parts: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation [C, 1, 1] of the first part that normalises.

    Args:
        parts: preprocessors of models, and transforms of data sets.

    Returns:
        In the order and the unit of the values that it normalises; None if no part does.
    """
    for part in parts:
        mean = getattr(part, 'mean', None)
        std = getattr(part, 'std', None)
        if mean is not None and std is not None:
            mean = torch.as_tensor(mean).float().cpu().view(-1, 1, 1)
            std = torch.as_tensor(std).float().cpu().view(-1, 1, 1)
            return mean, std
    return None


def stretched(values: Values) -> Values:
    """Return values of any range, stretched so that the smallest is 0 and the largest 255."""
    smallest = float(values.min())
    largest = float(values.max())
    return (values - smallest) * (255 / max(largest - smallest, 1e-12))


def loaded_as_rgb(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return loaded pixels as RGB uint8 [H, W, 3], from the first three channels.

    Values outside of 0 ... 255, or only in 0 ... 1, are stretched.

    Args:
        pixels: [H, W] or [H, W, C] of any dtype, blue first, as OpenMMLab's loaders return them.
    """
    pixels = np.atleast_3d(pixels)
    if pixels.shape[2] < 3:
        pixels = pixels[..., [0, 0, 0]]
    pixels = pixels[..., 2::-1]
    if pixels.dtype != np.uint8:
        pixels = np.nan_to_num(pixels.astype(np.float64))
        if pixels.min() < 0 or pixels.max() >= 256 or pixels.max() <= 1:
            pixels = stretched(pixels)
    return np.ascontiguousarray(pixels.astype(np.uint8))


def inputs_as_rgb(inputs: Tensor, preprocessor: Any, dataset: Any) -> list[NDArray[np.uint8]]:
    """Undo the normalisation of a network's images.

    One or two channels: the first, as grey. Four or more: the first three.

    Args:
        inputs: [B, C, H, W].
        preprocessor: of the model: it may normalise and exchange the colours' order.
        dataset: its transform may normalise instead.

    Returns:
        uint8 [H, W, 3] in RGB for each image.
    """
    values = inputs.detach().float().cpu()
    transforms = getattr(getattr(dataset, 'transform', None), 'transforms', ())
    found = mean_and_std(preprocessor, *transforms)
    is_share = False
    if found is not None:
        mean, std = found
        values = values * std + mean
        is_share = float(mean.max()) <= 1
    if is_share:
        values = values * 255
    elif values.min() < -1 or values.max() > 256:  # unknown normalisation, or more than 8 bits
        values = stretched(values)
    channels = values.shape[1]
    if channels < 3:
        values = values[:, :1].expand(-1, 3, -1, -1)
    elif channels > 3:
        values = values[:, :3]
    elif reads_bgr(preprocessor):
        values = values.flip(1)
    pixels = values.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return [np.ascontiguousarray(image) for image in pixels.numpy()]


def class_colours(palette: Any, number: int) -> list[tuple[int, int, int]] | None:
    """Return a colour per class: from the palette of the data set if it is long enough."""
    if isinstance(palette, (list, tuple)) and len(palette) >= number:
        return [tuple(colour) for colour in palette]
    colours = []
    for index in range(number):
        hue = index * 0.618 % 1  # the golden ratio: neighbours differ
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 0.95)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours or None


def place_names_quickly(visualizer: Any) -> None:
    """Let mmseg's visualizer find the place of a class's name in milliseconds.

    Its own search sorts the pixels of each class in Python, which takes seconds of a photograph.
    """
    visualizer._get_center_loc = place_of_name


def place_of_name(mask: NDArray[Any]) -> NDArray[Any]:
    """Return the middle (x, y) of a mask's fullest row, as mmseg's `_get_center_loc` does.

    Args:
        mask: [H, W] of 0 and 1; some are 1.
    """
    y = mask.sum(1).argmax()
    columns = np.flatnonzero(mask[y])
    return np.array([columns[len(columns) // 2], y])
