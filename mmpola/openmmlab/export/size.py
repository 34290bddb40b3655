"""The sizes of a config's images: `evaluated_size` for export, `input_size` for counting."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from mmengine.config import Config
from PIL import Image

from mmpola.messages import UsageError
from mmpola.openmmlab.config.types import library
from mmpola.openmmlab.predict.reader import FIRST_IMAGES, ImageReader, PipelineReader, open_reader
from mmpola.pretraining.data_config import evaluation_transform

PICTURE = (480, 640)
"""Height and width of the picture whose size is taken without test data."""

Size = tuple[int, ...]


def evaluated_size(cfg: Config) -> tuple[Size, str]:
    """Return (height, width) of the images that a config is evaluated on, and what makes them so.

    It is the most frequent size that the test pipeline makes of the first images of the test data,
    without padding; without these images, of a picture of 480 x 640 pixels. A classifier's is the
    size of timm's transforms.

    Raises:
        UsageError: there is no test pipeline, or it reads no picture.
    """
    reader = open_reader(cfg)
    if not isinstance(reader, PipelineReader):
        return input_size(cfg), "timm's transforms make them"
    images = [path for path in reader.images if path.exists()][:FIRST_IMAGES]
    sizes = Counter(loaded_size(reader, path) for path in images)
    if not sizes:
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, 'picture.png')
            Image.fromarray(np.zeros((*PICTURE, 3), np.uint8)).save(picture)
            try:
                size = loaded_size(reader, picture)
            except UsageError as error:
                raise UsageError(
                    f'--shape: expected H W, since the test data has no image to take it from, and '
                    f'the test pipeline does not read a picture in its place ({error})'
                ) from error
        return size, f'the test pipeline makes of a picture of {sides(PICTURE)}, without test data'
    (size, count), *others = sizes.most_common()
    source = 'the test pipeline makes them'
    if others:
        source += f' of {count} of the first {len(images)} images; another is {sides(others[0][0])}'
    return size, source


def input_size(cfg: Config) -> tuple[int, ...]:
    """Return (height, width) in pixels of a config's images, or (tokens,) of its sequences.

    Detectors have images of many sizes; 800 x 1280 is the size at which they are usually counted.
    """
    backbone = cfg.model.get('backbone', {})
    if 'length' in backbone:
        return (backbone['length'],)
    package = library(cfg)
    if package == 'mmdet':
        return (800, 1280)
    if package == 'mmseg':
        crop = cfg.model.data_preprocessor.get('size') or (512, 512)
        return tuple(crop)
    size = evaluation_transform(cfg)['input_size']
    if isinstance(size, int):
        return (size, size)
    return tuple(size[-2:])


def loaded_size(reader: ImageReader, path: Path) -> Size:
    """Return (height, width) of an image after all steps of the test pipeline."""
    height, width = reader.load(path).plain_view()['inputs'].shape[-2:]
    return height, width


def sides(size: Size) -> str:
    """Return (height, width) as text, in the order of check-data: '683 x 512', width x height."""
    return ' x '.join(str(side) for side in reversed(size))
