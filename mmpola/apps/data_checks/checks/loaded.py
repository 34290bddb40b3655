"""Checks of what the pipeline of a data set loads: images, label maps, and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mmpola.apps.data_checks.checks.files import one_folder_too_deep, other_names
from mmpola.apps.data_checks.read import INSTANCES, PIXELS, SAMPLES, Data
from mmpola.apps.data_checks.table import ERROR, IN_TRAINING, SAMPLE, WARNING, check, some
from mmpola.apps.image_reader import FIRST_IMAGES, channels_note, sixteen_bits_note
from mmpola.config_contents import head_ignore_index, input_channels
from mmpola.messages import listed

ENOUGH = {INSTANCES: 20, PIXELS: 2}
"""Labels (label maps for pixels) per class, from which on a class without any is a mistake."""

TOO_MUCH = 2
"""Padding of training images to more than so many times their pixels is named."""

SIXTEEN_BITS = 'sixteen-bits'
"""Name of a check that scripts which read single images ask too."""


@check('first-sample', ERROR, SAMPLE)
def first_sample(data: Data) -> Iterator[str]:
    """No sample comes through the whole pipeline."""
    if data.loaded.error is not None:
        yield f'{data.loader}.dataset: its first sample fails: {data.loaded.error}'


@check('samples-unreadable', ERROR, SAMPLE)
def samples_unreadable(data: Data) -> Iterator[str]:
    """Images, label maps or masks cannot be loaded."""
    yield from some(
        f'{data.place}: samples that cannot be loaded', faults(data, 'samples-unreadable')
    )


@check('image-size', ERROR, SAMPLE)
def image_size(data: Data) -> Iterator[str]:
    """Images have another size than their annotations say."""
    yield from some(
        f'{data.place}: images of another size than annotated', faults(data, 'image-size')
    )


@check('map-colours', ERROR, SAMPLE)
def map_colours(data: Data) -> Iterator[str]:
    """Label maps hold colours instead of the numbers of classes."""
    yield from some(
        f'{data.place}: label maps of colours; expected one channel with the numbers of the '
        'classes',
        faults(data, 'map-colours'),
    )


@check('map-size', ERROR, SAMPLE)
def map_size(data: Data) -> Iterator[str]:
    """Label maps have another size than their images."""
    yield from some(
        f'{data.place}: label maps of another size than their images', faults(data, 'map-size')
    )


@check('map-bits', ERROR, SAMPLE)
def map_bits(data: Data) -> Iterator[str]:
    """Label maps have numbers above 255, of which mmseg takes the lower 8 bits."""
    yield from some(
        f'{data.place}: label maps with numbers above 255, of which the step that loads them takes '
        'the lower 8 bits',
        faults(data, 'map-bits'),
    )


@check('map-lossy', WARNING, SAMPLE)
def map_lossy(data: Data) -> Iterator[str]:
    """Label maps are JPEG files, which change the numbers beside each border."""
    if is_lossy(data):
        yield (
            f'{data.place}: label maps with the suffix {data.dataset.seg_map_suffix}: JPEG is '
            'lossy and changes the numbers of the classes beside each border; write them as PNG, '
            'from the original'
        )


LOSSY = ('.jpg', '.jpeg', '.jpe', '.jfif')
"""Suffixes of formats that do not keep each pixel."""


def is_lossy(data: Data) -> bool:
    """Whether the numbers of the classes are read from files in a lossy format."""
    suffix = str(getattr(data.dataset, 'seg_map_suffix', '')).lower()
    return suffix in LOSSY and data.loaded.maps_are_bytes and data.labels.unit == PIXELS


@check('map-labels', ERROR, SAMPLE)
def map_labels(data: Data) -> Iterator[str]:
    """Label maps have numbers that are no class."""
    first = int(reduces_zero(data))
    last = len(data.classes) - 1 + first
    ignored = head_ignore_index(data.cfg.get('model'))
    rule = (
        f'{data.place}: label maps with other labels than {first} … {last} for '
        f'{len(data.classes)} classes (reduce_zero_label={bool(first)}) and {ignored} for no label '
        '(model.decode_head.ignore_index)'
    )
    if is_lossy(data):
        rule += f'; {data.dataset.seg_map_suffix} is a lossy format: write PNG, from the original'
    elif not first and data.loaded.strange == [len(data.classes)]:
        rule += '; files that number the classes from 1 need reduce_zero_label=True'
    unread = getattr(data.dataset, 'ignore_index', ignored)
    if unread != ignored:
        rule += f'; nothing reads ignore_index={unread} of the data set: set that of the heads'
    yield from some(rule, faults(data, 'map-labels'))


def faults(data: Data, name: str) -> list[str]:
    """List the files with a fault that loading has found for the check of this name."""
    return [fault.text for fault in data.loaded.faults if fault.check == name]


def reduces_zero(data: Data) -> bool:
    """Whether a data set takes label 0 away."""
    return bool(getattr(data.dataset, 'reduce_zero_label', False))


@check('objects-ignored', IN_TRAINING, SAMPLE)
def objects_ignored(data: Data) -> Iterator[str]:
    """The step that loads objects ignores all of them."""
    labels = data.labels
    if labels.unit == INSTANCES and labels.ignored and not labels.total:
        yield (
            f'{data.place}: no annotations to train on: the step that loads them ignores all '
            f'{labels.ignored}; run lengths need poly2mask=True, polygons three points'
        )


@check('nothing-to-learn', IN_TRAINING, SAMPLE)
def nothing_to_learn(data: Data) -> Iterator[str]:
    """All images or pixels are of one class: a model that says nothing else is right."""
    if data.labels.unit in (PIXELS, SAMPLES) and data.classes and not data.loaded.faults:
        yield from filter(None, [class_shortage(data)])


@check('one-class', WARNING, SAMPLE)
def one_class(data: Data) -> Iterator[str]:
    """Objects of only one of several classes occur."""
    is_asked = data.labels.unit == INSTANCES and data.is_trained and data.labels.total
    if is_asked and len(data.labelled) > 1:
        yield from filter(None, [class_shortage(data)])


def class_shortage(data: Data) -> str | None:
    """Describe a data set in which fewer than two classes occur; None if there are more."""
    labels = data.labels
    occurring = [name for label, name in enumerate(data.labelled) if labels.numbers[label]]
    if len(occurring) > 1:
        return None
    total = labels.total + labels.ignored
    share = labels.total / max(1, total)
    text = (
        f'{data.place}: expected labels of at least 2 classes, got {listed(occurring) or "none"} '
        f'of {len(data.labelled)} ({share:.1%} of the {labels.unit}, the others are ignored)'
    )
    if labels.unit != PIXELS:
        text += other_names(data) + one_folder_too_deep(data)
    elif reduces_zero(data):
        text += '; reduce_zero_label takes label 0 away: set it to False if it is a class'
    else:
        last = len(data.classes) - 1
        text += f'; label maps hold the numbers 0 … {last} of the classes, 255 is no label'
    return text


@check('absent-classes', WARNING, SAMPLE)
def absent_classes(data: Data) -> Iterator[str]:
    """Classes do not occur, though there are many labels to learn from."""
    labels = data.labels
    absent = [name for label, name in enumerate(data.labelled) if not labels.numbers[label]]
    total = data.counted if labels.unit == PIXELS else labels.total
    enough = ENOUGH.get(labels.unit, math.inf) * len(data.labelled)
    is_asked = data.is_trained and data.counted == data.images and total >= enough
    if is_asked and len(data.labelled) - len(absent) > 1:
        yield from some(f'{data.place}: classes without {labels.unit}{other_names(data)}', absent)


@check('padding', WARNING, SAMPLE)
def padding(data: Data) -> Iterator[str]:
    """The data preprocessor pads training images to many times their pixels."""
    size = (data.cfg.model.get('data_preprocessor') or {}).get('size')
    sizes = data.loaded.sizes
    if not data.is_trained or size is None or not sizes:
        return
    height, width = max(sizes, key=math.prod)
    factor = size[0] * size[1] / (height * width)
    if factor > TOO_MUCH:
        yield (
            f'model.data_preprocessor.size: expected the size of training images, '
            f'{height} x {width}, got {size[0]} x {size[1]}: padding makes {factor:.0f} times the '
            'pixels of each'
        )


@check('channels', WARNING, SAMPLE)
def channels(data: Data) -> Iterator[str]:
    """Images are loaded with other channels than the backbone reads."""
    expected = input_channels(data.cfg.model)
    yield from filter(None, [channels_note(data.loaded.images[:FIRST_IMAGES], expected)])


@check(SIXTEEN_BITS, WARNING, SAMPLE)
def sixteen_bits(data: Data) -> Iterator[str]:
    """Values of 16-bit images are lost on loading."""
    yield from filter(None, [sixteen_bits_note(data.loaded.images[:FIRST_IMAGES])])
