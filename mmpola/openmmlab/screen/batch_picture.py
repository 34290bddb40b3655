"""Draw a batch of images with its boxes, masks, label maps or classes as one picture."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager
from mmengine.registry import VISUALIZERS
from mmengine.structures import PixelData
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from mmpola.images import class_colours, inputs_as_rgb, place_names_quickly

SHOWN = 16
"""Largest number of images in a picture."""

WIDTH = 2400
"""Largest width of a picture in pixels."""

SMALLEST_TILE = 320
"""Images with shorter sides are enlarged to at least this many pixels: names are legible then."""

CAPTION = 22
"""Height of the line below an image in pixels."""

SMALLEST_SHARE = 0.005
"""The class of a mixed image is named if its share is not rounded to 0."""


def draw_batch(batch: dict[str, Any], preprocessor: Any, dataset: Any) -> Image.Image:
    """Draw up to `SHOWN` images of a batch, each with its annotations and the name of its file.

    mmdet's and mmseg's visualizers draw their own data samples.

    Args:
        batch: what the model's preprocessor returned: `inputs` [B, C, H, W], and `data_samples`.
        preprocessor: of the model.
        dataset: of the loader, with `metainfo`.
    """
    images = inputs_as_rgb(batch['inputs'][:SHOWN], preprocessor, dataset)
    samples = (batch.get('data_samples') or [None] * len(images))[: len(images)]
    metainfo = getattr(dataset, 'metainfo', None) or {}
    classes = [str(name) for name in metainfo.get('classes') or ()]
    palette = class_colours(metainfo.get('palette'), len(classes))
    visualizer = visualizer_of(samples[0])
    if visualizer is not None:
        place_names_quickly(visualizer)
        visualizer.dataset_meta = {'classes': classes or None, 'palette': palette}
    tiles = []
    for image, sample in zip(images, samples, strict=True):
        caption = Path(str(getattr(sample, 'metainfo', {}).get('img_path', ''))).name
        if visualizer is not None:
            image, sample = enlarged(image, sample)
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of boxes on the border
                visualizer.add_datasample('batch', image, sample, draw_gt=True, draw_pred=False)
            image = visualizer.get_image()
        elif sample is not None:
            smoothing = getattr(preprocessor, 'label_smoothing', 0.0)
            caption = f'{class_text(sample, classes, smoothing)}  {caption}'
        tiles.append((Image.fromarray(image), caption))
    return contact_sheet(tiles)


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


def enlarged(image: NDArray[Any], sample: Any) -> tuple[NDArray[Any], Any]:
    """Upscale a small image and its annotations by an integer, so that labels are legible.

    Args:
        image: RGB uint8 [H, W, 3].
        sample: of mmdet or mmseg, with boxes, masks or label maps; it is not changed.
    """
    height, width = image.shape[:2]
    factor = math.ceil(SMALLEST_TILE / min(height, width))
    factor = min(factor, WIDTH // max(height, width))  # of a narrow strip
    if factor <= 1:
        return image, sample
    height *= factor
    width *= factor
    image = np.asarray(Image.fromarray(image).resize((width, height)))
    sample = sample.clone()
    if 'gt_instances' in sample:
        instances = sample.gt_instances.clone()
        if 'bboxes' in instances:
            boxes = instances.bboxes
            instances.bboxes = getattr(boxes, 'tensor', boxes) * factor  # HorizontalBoxes
        if 'masks' in instances:
            instances.masks = instances.masks.resize((height, width))
        sample.gt_instances = instances
    for name in ('gt_sem_seg', 'gt_panoptic_seg'):
        if name in sample:
            pixels = PixelData()
            for key, values in sample.get(name).items():  # mmdet's and mmseg's have other keys
                rows = values.repeat_interleave(factor, -2)
                pixels.set_data({key: rows.repeat_interleave(factor, -1)})
            sample.set_data({name: pixels})
    return image, sample


def class_text(sample: Any, classes: list[str], smoothing: float) -> str:
    """Return the class of an image, or the classes of two mixed images with their shares.

    Args:
        sample: with `gt_score` [num_classes] or `gt_label`.
        classes: their names.
        smoothing: the part of `gt_score` that label smoothing has given to all classes alike.
    """
    names = dict(enumerate(classes))
    if 'gt_score' in sample:
        scores = sample.gt_score.detach().float().cpu()
        shares = (scores - smoothing / len(scores)) / (1 - smoothing)
        values, indices = shares.topk(min(2, len(shares)))
        texts = []
        for share, index in zip(values.tolist(), indices.tolist(), strict=True):
            name = str(names.get(index, f'class {index}'))
            if share > 1 - SMALLEST_SHARE:
                return name
            if share > SMALLEST_SHARE:
                texts.append(f'{name} {share:.2f}')
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
    font = font_of(CAPTION - 8)
    pen = ImageDraw.Draw(sheet)
    for index, (image, caption) in enumerate(tiles):
        x = index % columns * size[0]
        y = index // columns * (size[1] + CAPTION)
        sheet.paste(image.resize(size), (x, y))
        fits = max(1, int(len(caption) * size[0] / max(pen.textlength(caption, font), 1)))
        pen.text((x + 3, y + size[1] + 2), caption[:fits], 'black', font)
    return sheet


def font_of(size: int) -> ImageFont.FreeTypeFont:
    """Return matplotlib's font, which has letters of many languages."""
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), size)
