"""What the data decide: splits, classes, size of the network's input, length of training."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mmengine.config import Config

from mmpola.messages import UsageError, counted, listed
from mmpola.openmmlab.new.description import (
    BOXES,
    CLASSES,
    LABEL_MAPS,
    OUTLINES,
    Found,
    Sample,
    every,
    image_size,
)
from mmpola.openmmlab.split import divide

SHARE = 0.2
"""Of the images, for validation, if the folder has none; as `mmpola split`."""

FEW = 10
"""Fewer objects, or images, of a class are too few to learn it."""

KEPT = 16
"""Pixels that an object should keep where the network reads it."""

SIZES = {
    BOXES: ((256, 192), (384, 288), (512, 384), (768, 576), (1024, 768)),
    OUTLINES: ((256, 192), (384, 288), (512, 384), (768, 576), (1024, 768)),
    LABEL_MAPS: ((240, 180), (480, 360)),
    CLASSES: ((64, 64), (96, 96), (160, 160)),
}
"""Sizes of the network's input, width and height in pixels."""

SMALL_BATCH = 8
STEPS = 600
MOST_EPOCHS = 100
MANY_STEPS = 20_000
"""Steps that a small set gets, in at most so many epochs; a large one gets no more than MANY."""


def choose_classes(found: Found, wanted: list[str] | None) -> None:
    """Leave out classes that are not wanted, or do not occur.

    Raises:
        UsageError: names differ by case only, or none of the wanted ones occurs.
    """
    names = found.classes
    alike = [name for name, number in Counter(map(str.casefold, names)).items() if number > 1]
    if wanted is None and alike:
        same = [name for name in names if name.casefold() == alike[0]]
        others = list({name.casefold(): name for name in names}.values())
        raise UsageError(
            f'classes that differ by capitals only: {listed(same)}; --classes {",".join(others)} '
            'takes them as one'
        )
    if wanted is not None:
        by_plain = {name.casefold(): name for name in wanted}
        left_out: Counter[str] = Counter()
        for sample in found.samples:
            kept = []
            for one in sample.objects:
                name = by_plain.get(one.name.casefold())
                if name is None:
                    left_out[one.name] += 1
                else:
                    kept.append(one._replace(name=name))
            sample.objects = kept
            if sample.name and sample.name.casefold() not in by_plain:
                left_out[sample.name] += 1
            sample.name = by_plain.get(sample.name.casefold(), '')
        absent = [name for name in wanted if name.casefold() not in map(str.casefold, names)]
        if absent:
            raise UsageError(
                f'--classes: expected some of {listed(names, None)}, got {listed(absent)}'
            )
        if left_out:
            found.notes.append(f'left out by --classes: {listed(left_out)} ({left_out.total():,})')
        if found.task == CLASSES:
            found.samples = [sample for sample in found.samples if sample.name]
        if wanted != names:
            found.files.clear()
        found.classes = list(wanted)


def choose_splits(found: Found, root: Path) -> str:
    """Divide the images if the folder has no splits; return why they are as they are.

    Raises:
        UsageError: there are too few images.
    """
    present = {sample.split for sample in found.samples}
    if 'train' not in present:
        for sample in found.samples:
            sample.split = 'train'
        reason = 'none found'
    else:
        reason = f'{", ".join(name for name in ("train", "val", "test") if name in present)} found'
    unsplit = found.of('')
    if unsplit:
        found.notes.append(f'left out: {counted(len(unsplit), "image")} in no split')
        found.samples = [sample for sample in found.samples if sample.split]
    if 'train' not in present or 'val' not in present:
        found.files.clear()
        _divide(found, root)
        reason += '; a fifth of the images is for validation, as mmpola split divides them'
    if not found.of('test'):
        reason += '; no test images: val serves as test'
    return f'splits: {", ".join(counts_text(found))}: {reason}'


def _divide(found: Found, root: Path) -> None:
    """Divide the images for training into training and validation, class by class."""
    groups: dict[str, dict[str, Sample]] = {}
    for sample in found.of('train'):
        groups.setdefault(sample.name, {})[os.path.relpath(sample.image, root)] = sample
    for name, group in groups.items():
        for path in divide(group, {'val': SHARE}, root / name)['val']:
            group[path].split = 'val'


def counts_text(found: Found) -> list[str]:
    """Return 'train 164', 'val 41' …"""
    return [f'{split} {len(found.of(split)):,}' for split in found.splits]


def drop_absent_classes(found: Found) -> None:
    """Leave out classes of which training has nothing, and name those with little."""
    counts = labels_in(found.of('train'), found)
    absent = [name for name in found.classes if not counts[name]]
    if absent and found.task != LABEL_MAPS:
        found.classes = [name for name in found.classes if counts[name]]
        text = f'classes of which training has nothing: {listed(absent)}'
        found.notes.append(f'left out: {text}')
        kept = set(found.classes)
        for sample in found.samples:
            sample.objects = [one for one in sample.objects if one.name in kept]
        if found.task == CLASSES:
            found.samples = [sample for sample in found.samples if sample.name in kept]
    elif absent:
        found.notes.append(f'classes without a pixel in training: {listed(absent)}')
    if found.task != LABEL_MAPS:
        few = [f'{name} {counts[name]}' for name in found.classes if counts[name] < FEW]
        if few:
            found.notes.append(f'fewer than {FEW} to learn from: {listed(few)}')
    for split in ('val', 'test'):
        there = labels_in(found.of(split), found)
        missing = [name for name in found.classes if not there[name]]
        if missing and found.of(split):
            found.notes.append(f'{split} has nothing of {listed(missing)}')


def labels_in(samples: Iterable[Sample], found: Found) -> Counter[str]:
    """Count objects, images or pixels of each class."""
    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(one.name for one in sample.objects if not one.is_ignored)
        if sample.name:
            counts[sample.name] += 1
        for value, number in sample.pixels.items():
            label = found.values[value]
            if label < len(found.classes):
                counts[found.classes[label]] += number
    return counts


def side(box: tuple[float, float, float, float]) -> float:
    """Return the side of a square as large as a box, in pixels."""
    return math.sqrt(max(box[2], 0) * max(box[3], 0))


def choose_size(found: Found, wanted: int | None) -> tuple[tuple[int, int], str]:
    """Return width and height at which the network reads images, and why."""
    sizes = SIZES[found.task]
    if wanted is not None:
        width, height = sizes[-1]
        chosen = (wanted, round(wanted * height / width))
        return chosen, f'size: {chosen[0]} x {chosen[1]}, from --size'
    images = found.of('train')
    if found.task == CLASSES:
        known = [image_size(sample.image) or (0, 0) for sample in every(200, images)]
    else:
        known = [sample.size for sample in images]
    width, height = (int(statistics.median(side)) for side in zip(*known, strict=True))
    about = f'images are {width} x {height} (median)'
    if found.task == CLASSES:
        chosen = sizes[0] if max(width, height) <= 64 else sizes[1]
        text = f'{about}; --size 160 sees more, and takes three times as long'
        return chosen, f'size: {chosen[0]} x {chosen[1]}: {text}'
    if found.task == LABEL_MAPS:
        chosen = sizes[0] if max(width, height) <= 320 else sizes[1]
        return chosen, f'size: {chosen[0]} x {chosen[1]}, of which training cuts crops: {about}'
    sides = []
    for sample in images:
        sides += [(side(one.box), max(sample.size), min(sample.size)) for one in sample.objects]
    if not sides:
        raise UsageError('expected objects to learn from, got none in the images for training')
    small = sorted(sides)[len(sides) // 4][0]
    for chosen in sizes:
        factor = min(chosen[0] / max(width, height), chosen[1] / min(width, height))
        if small * factor >= KEPT or factor >= 1:
            break
    text = f'{about}; a quarter of the objects is smaller than {small:.0f} pixels'
    return chosen, f'size: {chosen[0]} x {chosen[1]}: {text}, {small * factor:.0f} at this size'


def choose_length(found: Found, recipe: Config) -> tuple[int, int, str]:
    """Return images per step, epochs (0: the recipe counts steps), and why."""
    number = len(found.of('train'))
    batch = recipe.train_dataloader.batch_size
    if found.task == LABEL_MAPS:
        steps = recipe.train_cfg.max_iters
        return batch, 0, f'length: {steps:,} steps of {batch} crops, as the recipe has'
    if found.task == CLASSES and number < SMALL_BATCH * batch:
        batch = SMALL_BATCH
    steps = max(1, number // batch if found.task == CLASSES else -(-number // batch))
    usual = recipe.train_cfg.max_epochs
    epochs = min(MOST_EPOCHS, max(usual, -(-STEPS // steps)))
    epochs = min(epochs, max(1, MANY_STEPS // steps))
    text = f'length: {counted(epochs, "epoch")} of {counted(steps, "step")} ({batch} images each)'
    if epochs > usual:
        text += (
            f': a small set needs more than the {usual} of the recipe to get about {STEPS:,} steps'
        )
    elif epochs < usual:
        text += f': a large set needs fewer than the {usual} of the recipe'
    return batch, epochs, text
