"""Draw a batch of images with its boxes, masks, label maps or classes as one picture."""

from __future__ import annotations

import colorsys
import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import font_manager
from mmengine.registry import VISUALIZERS
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SHOWN = 16
"""Largest number of images in a picture."""

WIDTH = 2400
"""Largest width of a picture in pixels."""

SMALLEST_TILE = 320
"""Images with shorter sides are enlarged to this many pixels, so that names can be read."""

CAPTION = 22
"""Height of the line below an image in pixels."""


def draw_batch(batch: dict[str, Any], preprocessor: Any, dataset: Any) -> Image.Image:
    """Draw up to `SHOWN` images of a batch, each with its annotations and the name of its file.

    mmdet's and mmseg's visualizers draw their own data samples.

    Args:
        batch: what the model's preprocessor returned: `inputs` [B, C, H, W], and `data_samples`.
        preprocessor: of the model.
        dataset: of the loader, with `metainfo`.
    """
    images = shown_images(batch['inputs'][:SHOWN], preprocessor, dataset)
    samples = (batch.get('data_samples') or [None] * len(images))[: len(images)]
    metainfo = getattr(dataset, 'metainfo', None) or {}
    classes = [str(name) for name in metainfo.get('classes') or ()]
    palette = class_colours(metainfo.get('palette'), len(classes))
    visualizer = visualizer_of(samples[0])
    if visualizer is not None:
        visualizer.dataset_meta = {'classes': classes or None, 'palette': palette}
    tiles = []
    for image, sample in zip(images, samples, strict=True):
        caption = Path(str(getattr(sample, 'metainfo', {}).get('img_path', ''))).name
        if visualizer is not None:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of boxes on the border
                visualizer.add_datasample('batch', image, sample, draw_gt=True, draw_pred=False)
            image = visualizer.get_image()
        elif sample is not None:
            caption = f'{class_text(sample, classes)}  {caption}'
        tiles.append((Image.fromarray(image), caption))
    return contact_sheet(tiles)


def shown_images(inputs: Tensor, preprocessor: Any, dataset: Any) -> list[np.ndarray]:
    """Undo the normalisation of images.

    Of one or two channels the first is shown in grey, of four and more the first three.

    Args:
        inputs: [B, C, H, W].
        preprocessor: of the model: it may normalise and exchange the colours' order.
        dataset: its transform may normalise instead.

    Returns:
        uint8 [H, W, 3] in RGB for each image.
    """
    values = inputs.detach().float().cpu()
    found = normalisation(preprocessor, dataset)
    is_share = False
    if found is not None:
        mean, std = found
        values = values * std + mean
        is_share = float(mean.max()) <= 1
    low = float(values.min())
    high = float(values.max())
    if is_share:
        values = values * 255
    elif low < -1 or high > 256:  # unknown normalisation, or more than 8 bits
        values = (values - low) * (255 / max(high - low, 1e-6))
    channels = values.shape[1]
    if channels < 3:
        values = values[:, :1].expand(-1, 3, -1, -1)
    elif channels > 3:
        values = values[:, :3]
    elif reads_bgr(preprocessor):
        values = values.flip(1)
    pixels = values.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return [np.ascontiguousarray(image) for image in pixels.numpy()]


def normalisation(preprocessor: Any, dataset: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation [C, 1, 1] of a preprocessor or of a data set's transform.

    None if neither normalises.
    """
    parts = [preprocessor, *getattr(getattr(dataset, 'transform', None), 'transforms', ())]
    for part in parts:
        mean = getattr(part, 'mean', None)
        std = getattr(part, 'std', None)
        if mean is not None and std is not None:
            mean = torch.as_tensor(mean).float().cpu().view(-1, 1, 1)
            std = torch.as_tensor(std).float().cpu().view(-1, 1, 1)
            return mean, std
    return None


def reads_bgr(preprocessor: Any) -> bool:
    """Whether a model of OpenMMLab reads blue first, as mmcv loads images."""
    for name in ('_channel_conversion', 'channel_conversion'):  # of mmdet and mmseg
        if hasattr(preprocessor, name):
            return not getattr(preprocessor, name)
    return False


def visualizer_of(sample: Any) -> Any:
    """Return the visualizer of mmdet or mmseg that draws a data sample; None if neither does.

    It is not the run's visualizer, whose size and colours stay as they are.
    """
    if sample is None:
        return None
    if 'gt_instances' in sample or 'gt_panoptic_seg' in sample:
        return VISUALIZERS.get('mmdet.DetLocalVisualizer')(
            'first_batch', line_width=2, alpha=0.6, text_color=(255, 255, 255)
        )
    if 'gt_sem_seg' in sample:
        return VISUALIZERS.get('mmseg.SegLocalVisualizer')('first_batch', alpha=0.5)
    return None


def class_colours(palette: Any, number: int) -> list[tuple[int, int, int]] | None:
    """Return a colour per class: those of the data set if it has enough of them."""
    if isinstance(palette, (list, tuple)) and len(palette) >= number:
        return [tuple(colour) for colour in palette]
    colours = []
    for index in range(number):
        hue = index * 0.618 % 1  # the golden ratio: neighbours differ
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 0.95)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours or None


def class_text(sample: Any, classes: list[str]) -> str:
    """Return the class of an image; its two largest with their weights for a mixed image."""
    names = dict(enumerate(classes))
    if 'gt_score' in sample:
        weights, indices = sample.gt_score.detach().cpu().topk(min(2, len(sample.gt_score)))
        texts = []
        for weight, index in zip(weights.tolist(), indices.tolist(), strict=True):
            texts.append(f'{names.get(index, index)} {weight:.2f}')
        return ', '.join(texts)
    if 'gt_label' in sample:
        index = int(sample.gt_label)
        return names.get(index, f'class {index}')
    return ''


def contact_sheet(tiles: list[tuple[Image.Image, str]]) -> Image.Image:
    """Arrange images of one size in rows, each above its caption."""
    width, height = tiles[0][0].size
    columns = max(1, min(len(tiles), round(math.sqrt(len(tiles) * height / width) + 0.5)))
    scale = min(WIDTH / columns / width, max(1.0, SMALLEST_TILE / min(width, height)))
    size = (round(width * scale), round(height * scale))
    rows = math.ceil(len(tiles) / columns)
    sheet = Image.new('RGB', (columns * size[0], rows * (size[1] + CAPTION)), 'white')
    font = ImageFont.truetype(font_manager.findfont('DejaVu Sans'), CAPTION - 8)
    pen = ImageDraw.Draw(sheet)
    for index, (image, caption) in enumerate(tiles):
        x = index % columns * size[0]
        y = index // columns * (size[1] + CAPTION)
        sheet.paste(image.resize(size), (x, y))
        fits = max(1, int(len(caption) * size[0] / max(pen.textlength(caption, font), 1)))
        pen.text((x + 3, y + size[1] + 2), caption[:fits], 'black', font)
    return sheet


def jpeg(picture: Image.Image) -> bytes:
    """Return a picture as the content of a JPEG file."""
    content = io.BytesIO()
    picture.save(content, format='JPEG', quality=92)
    return content.getvalue()
