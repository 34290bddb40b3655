"""An image file's bytes to RGB, whatever the file holds."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def rgb_image(data: bytes) -> Image.Image:
    """Decode an image of any mode to RGB.

    16-bit greyscale keeps its upper 8 bits (Pillow's own conversion clips it to white), transparency is dropped, and
    pixels stay as stored: an EXIF rotation is not applied, nor do torchvision and timm, with which the published
    numbers were measured.

    Raises:
        Exception: Pillow cannot decode it; which one depends on the format.
    """
    with Image.open(io.BytesIO(data)) as file:
        file.load()
        image: Image.Image = file
        if image.mode.startswith('I'):
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        elif 'transparency' in image.info:
            image = image.convert('RGBA')
        return image.convert('RGB')
