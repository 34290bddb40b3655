"""Which files are images, and decoding one of any mode to RGB."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
"""Lower-case suffixes of the files in a folder that are images. No .gif: OpenCV reads it only since version 4.11."""


def rgb_image(data: bytes) -> Image.Image:
    """Decode an image of any mode to RGB.

    16-bit greyscale keeps its upper 8 bits (Pillow's own conversion clips it to white) and transparency is dropped.
    Pixels stay as stored: an EXIF rotation is not applied, as in torchvision and timm, which gave the published
    numbers.

    Raises:
        Exception: Pillow cannot decode it; the type depends on the format.
    """
    with Image.open(io.BytesIO(data)) as file:
        file.load()
        image: Image.Image = file
        if image.mode.startswith('I'):
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        elif 'transparency' in image.info:
            image = image.convert('RGBA')
        return image.convert('RGB')
