"""What `mmpola new` shows: a table of classes, the checks of data, a picture, the minutes."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.device import get_device
from mmengine.registry import DATASETS
from PIL import Image, ImageOps
from rich.table import Table

from mmpola.files import write_atomically
from mmpola.images import encoded
from mmpola.messages import counted
from mmpola.openmmlab.checks import check_data
from mmpola.openmmlab.checks.report import printed_lines
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.contents import type_name
from mmpola.openmmlab.config.read import load_config
from mmpola.openmmlab.new.decide import labels_in, side
from mmpola.openmmlab.new.description import BOXES, LABEL_MAPS, OUTLINES, Found, every
from mmpola.openmmlab.screen.batch_picture import draw_batch

DRAWN = 12
COLUMNS = 4
CELL = (600, 600)
"""Samples in the picture, in each of its rows, and the largest width and height of each."""

LOADING = ('LoadImageFromFile', 'LoadAnnotations')

ALL_LOADED = 2000
"""Images up to which each of them is loaded once."""

SHOWN = 20
"""Rows of the table: of more classes, the first and the rarest."""


def table_lines(found: Found) -> list[str]:
    """Return the classes by split: objects, images or pixels, and the sizes of objects."""
    splits = found.splits
    counts = {split: labels_in(found.of(split), found) for split in splits}
    units = {LABEL_MAPS: 'pixels', BOXES: 'objects', OUTLINES: 'objects'}
    table = Table(box=None, pad_edge=False)
    table.add_column(units.get(found.task, 'images'))
    headings = [*splits]
    sides: dict[str, list[float]] = {name: [] for name in found.classes}
    images: dict[str, int] = dict.fromkeys(found.classes, 0)
    if found.task in (BOXES, OUTLINES):
        headings += ['images', 'smallest', 'median']
        for sample in found.samples:
            for name in {one.name for one in sample.objects}:
                images[name] += 1
            for one in sample.objects:
                sides[one.name].append(side(one.box))
    for heading in headings:
        table.add_column(heading, justify='right')
    names = found.classes
    if len(names) > SHOWN:
        names = [name for name in names if counts['train'][name]]
        names.sort(key=lambda name: -counts['train'][name])
        names = names[: SHOWN // 2] + names[-SHOWN // 2 :]
    for name in names:
        row = []
        for split in splits:
            number = counts[split][name]
            total = max(1, counts[split].total())
            row.append(f'{number / total:.2%}' if found.task == LABEL_MAPS else f'{number:,}')
        if sides[name]:
            row += [
                f'{images[name]:,}',
                f'{min(sides[name]):.0f} px',
                f'{statistics.median(sides[name]):.0f} px',
            ]
        table.add_row(name, *row)
    lines = printed_lines(table)
    if len(names) < len(found.classes):
        lines.append(f'(of {len(found.classes)} classes, those with the most and the fewest)')
    return lines


def check_and_draw(found: Found, config: Path, picture: Path, is_timed: bool) -> None:
    """Check the data as `mmpola check-data` does, draw samples, and print how long training takes.

    Args:
        found: the data.
        config: the file that has been written.
        picture: to write.
        is_timed: whether to measure training steps, which take minutes of large networks.

    Raises:
        UsageError: the data cannot be learned.
    """
    cfg = load_config(argparse.Namespace(config=str(config), cfg_options=None))
    model = validate_config(cfg)
    is_small = len(found.samples) <= ALL_LOADED
    report = check_data(cfg, whole=is_small, model=model)
    for one in report.found:
        print(one)
    if not is_small:
        print(f'32 images of each split were loaded; mmpola check-data {config} loads all')
    dataset = report.sets[0].dataset
    if 'dataset' in cfg.train_dataloader.dataset:
        print('not drawn: training mixes images; first_batch.jpg will show them')
    else:
        draw(found, dataset, picture, model, cfg)
    command = f'next: mmpola train {config}'
    if is_timed:
        seconds = seconds_per_step(model, dataset, cfg) * steps_of_run(cfg, len(dataset))
        command += f'    (about {duration(seconds)} here, and validation)'
    print(command)


def draw(found: Found, dataset: Any, picture: Path, model: Any, cfg: Config) -> None:
    """Draw samples of the training images, and print how they are read."""
    drawn = dataset
    how = 'as training reads them'
    if found.task == LABEL_MAPS:  # training reads crops
        pipeline = [*cfg.val_dataloader.dataset.pipeline]
        # Validation loads label maps behind Resize, at their own size.
        pipeline.sort(key=lambda step: type_name(step['type']) not in LOADING)
        drawn = DATASETS.build({**cfg.train_dataloader.dataset, 'pipeline': pipeline})
        how = 'as validation reads them; training reads crops'
    chosen = telling_samples(found, drawn)
    sheet = draw_samples([drawn[index] for index in chosen], drawn, model, cfg)
    pixels = np.asarray(sheet)
    write_atomically(picture, encoded(pixels, 'jpeg', quality=92))
    shown = picture if not picture.is_relative_to(Path.cwd()) else picture.relative_to(Path.cwd())
    print(f'{shown}: {counted(len(chosen), "sample")} {how}: look at it first')


def draw_samples(items: list[Any], dataset: Any, model: Any, cfg: Config) -> Image.Image:
    """Draw items of a data set, each at its own ratio, in rows of `COLUMNS`."""
    tiles = []
    for item in items:
        # In training, preprocessors pad masks and label maps as they pad the image.
        batch = model.data_preprocessor(collated([item], cfg), training=True)
        tile = draw_batch(batch, model.data_preprocessor, dataset)
        tiles.append(ImageOps.contain(tile, CELL))
    rows = -(-len(tiles) // COLUMNS)
    height = max(tile.height for tile in tiles)
    sheet = Image.new('RGB', (COLUMNS * CELL[0], rows * height), 'white')
    for number, tile in enumerate(tiles):
        x = number % COLUMNS * CELL[0]
        y = number // COLUMNS * height
        sheet.paste(tile, (x, y))
    return sheet


def telling_samples(found: Found, dataset: Any) -> list[int]:
    """Return the indices of samples to draw: each class, the rarest first, then others.

    Args:
        found: the data.
        dataset: of the training images, as the config builds it.
    """
    counts = labels_in(found.of('train'), found)
    occurring = [name for name in found.classes if counts[name]]
    rarest = sorted(occurring, key=lambda name: counts[name])
    indices: dict[str, int] = {}
    for index in range(len(dataset)):
        indices[os.path.realpath(dataset.get_data_info(index)['img_path'])] = index
    holders: dict[str, list[int]] = {}
    for sample in found.of('train'):
        path = os.path.realpath(sample.image)
        for name in labels_in([sample], found) if path in indices else ():
            holders.setdefault(name, []).append(indices[path])
    chosen: list[int] = []
    for name in rarest[:DRAWN]:
        new = [index for index in holders.get(name, ()) if index not in chosen]
        chosen += new[:1]
    others = [index for index in range(len(dataset)) if index not in chosen]
    if len(chosen) < DRAWN:
        chosen += every(DRAWN - len(chosen), others)
    return chosen


def collated(items: list[Any], cfg: Config) -> Any:
    """Return items of the training data as a batch, as their loader puts them together."""
    collate = cfg.train_dataloader.get('collate_fn') or {'type': 'pseudo_collate'}
    return (default_collate if collate['type'] == 'default_collate' else pseudo_collate)(items)


def seconds_per_step(model: Any, dataset: Any, cfg: Config) -> float:
    """Return how long a training step takes here: the faster of two, after one that warms up."""
    model.train().to(get_device())
    size = cfg.train_dataloader.batch_size
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        items = [dataset[index % len(dataset)] for index in range(size)]
        batch = model.data_preprocessor(collated(items, cfg), training=True)
        loss, _ = model.parse_losses(model(**batch, mode='loss'))
        loss.backward()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def steps_of_run(cfg: Config, images: int) -> int:
    """Return the number of training steps."""
    if cfg.train_cfg.get('max_iters'):
        return int(cfg.train_cfg.max_iters)
    return int(cfg.train_cfg.max_epochs) * -(-images // cfg.train_dataloader.batch_size)


def duration(seconds: float) -> str:
    """Return a length of time in words."""
    if seconds < 5400:
        return counted(max(1, round(seconds / 60)), 'minute')
    return counted(round(seconds / 3600), 'hour')
