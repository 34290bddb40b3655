"""Checks of one data set: what it knows (names, objects), and what its pipeline loads."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from mmpola.images import images_below
from mmpola.messages import listed
from mmpola.openmmlab.checks.read import (
    FARTHEST,
    INSTANCES,
    PIXELS,
    SAMPLES,
    Data,
    scale_factor,
    steps_of,
)
from mmpola.openmmlab.checks.table import (
    CHECKS,
    DATA,
    ERROR,
    IN_TRAINING,
    SAMPLE,
    WARNING,
    Check,
    check,
    lines_for,
)
from mmpola.openmmlab.config.contents import evaluators, head_ignore_index, input_channels
from mmpola.openmmlab.predict.reader import (
    FIRST_IMAGES,
    channels_note,
    sixteen_bits_note,
    turned_note,
)

MANY = 0.1
"""Something is wrong with all boxes if more than this share of them leaves its image."""

ROUNDING = 1
"""Pixels by which a box may leave its image."""

FEW_OBJECTS = 0.01
"""Up to this share of the objects is not worth a warning: AP changes by a point at most."""

HALF = 0.5
"""Area that an outline and its box have at least in common, as a share of both together."""

LOSSY = ('.jpg', '.jpeg', '.jpe', '.jfif')
"""Suffixes of formats that do not keep each pixel."""

ENOUGH = {INSTANCES: 20, PIXELS: 2}
"""Labels (label maps for pixels) per class, from which on a class without any is a mistake."""

TOO_MUCH = 2
"""Padding of training images to more than so many times their pixels is named."""

SMALLEST = 4
"""Side in pixels of an object, below which it is smaller than a pixel of the network's first map.

Backbones for detection begin with maps of a quarter of the image.
"""


DROPPED = (
    'with area 0 (write width times height of the box), ignore, a category that the file lacks, or '
    'a box in shares of the image, of less than a pixel, outside, or not finite'
)
"""What data sets in COCO layout leave out, and what helps most often."""

SIXTEEN_BITS = 'sixteen-bits'
EXIF = 'exif'
"""Names of checks that scripts which read single images ask too."""


# Files, classes and images.


@check('classes-absent', ERROR, DATA)
def classes_absent(data: Data) -> Iterator[str]:
    """The annotation file has no category of a class of the config."""
    if data.raw is not None and hasattr(data.dataset, 'cat2label'):
        names = [category['name'] for category in data.raw.dataset['categories']]
        has = f'has the categories {listed(names)}' if names else 'has no categories'
        yield from lines_for(
            f'{data.place}: the file {has}; set metainfo.classes, which has others',
            [name for name in data.classes if name not in names],
        )


@check('classes-twice', ERROR, DATA)
def classes_twice(data: Data) -> Iterator[str]:
    """Several categories or classes have one name."""
    counts = Counter(numbered_names(data))
    yield from lines_for(
        f'{data.place}: several categories of one name; merge them in the file, or rename one',
        [name for name, count in counts.items() if count > 1],
    )


@check('classes-order', ERROR, DATA)
def classes_order(data: Data) -> Iterator[str]:
    """The classes are not in the order of the file, by which mmdet numbers them."""
    numbered = numbered_names(data)
    is_other = numbered and sorted(numbered) == sorted(data.classes)
    if is_other and numbered != list(data.classes):
        yield (
            f'{data.place}: metainfo.classes: expected the order of the file, by which mmdet '
            f'numbers them ({listed(numbered)}), got {listed(data.classes)}'
        )


def numbered_names(data: Data) -> list[str]:
    """Return the names of the categories in the order of the labels they get; [] without any."""
    labels = getattr(data.dataset, 'cat2label', ())
    if labels and data.raw is None:  # LVIS, VOC
        return list(data.classes)
    return [data.raw.cats[category]['name'] for category in labels]


def other_names(data: Data) -> str:
    """Return the names of objects that are none of the classes, for a message."""
    if not data.others:
        return ''
    return f'; the annotations have {listed(sorted(data.others))}'


def one_folder_too_deep(data: Data) -> str:
    """Return the remedy if the classes of class folders hold folders, but no images; else ''."""
    root = getattr(data.dataset, 'root', None)
    for folder in [Path(root, name) for name in data.classes] if root else ():
        entries = list(folder.iterdir()) if folder.is_dir() else []
        folders = sorted(entry.name for entry in entries if entry.is_dir())
        if folders and len(folders) == len(entries):
            return f'; {folder} has only folders ({listed(folders)}): is that the root?'
    return ''


@check('image-ids', ERROR, DATA)
def image_ids(data: Data) -> Iterator[str]:
    """Several images of an annotation file have one id."""
    if data.raw is not None:
        count = len(data.raw.dataset['images'])
        if len(data.raw.imgs) < count:
            yield f'{data.place}: {count} images have {len(data.raw.imgs)} different ids'


@check('annotations-dropped', WARNING, DATA)
def annotations_dropped(data: Data) -> Iterator[str]:
    """The data set leaves annotations out without a word, which AP may count as missed."""
    strays = []
    for annotation in data.raw.dataset.get('annotations', []) if data.raw is not None else ():
        if annotation['image_id'] not in data.raw.imgs:
            strays.append(annotation.get('id'))
    count = data.dropped.total() + len(strays)
    parts = []
    if data.dropped:
        parts.append(f'in {listed(data.dropped, 3)}: {DROPPED}')
    if strays:
        parts.append(f'no such image: {len(strays)}, id {listed(strays, 3)}')
    if not parts:
        return
    text = f'{data.place}: {count} of {data.annotations + len(strays)} annotations are dropped '
    text += f'({"; ".join(parts)})'
    files = [path.resolve() for path in data.paths]
    for key, evaluator in [one for split in data.splits for one in evaluators(data.cfg, split)]:
        if data.dropped and Path(evaluator.get('ann_file') or '').resolve() in files:
            text += f'; {key} reads them from the file, and AP counts them as missed'
            break
    yield text


@check('classes-spelling', WARNING, DATA)
def classes_spelling(data: Data) -> Iterator[str]:
    """Names of objects differ from a class in blanks or capitals only: they are left out."""
    plain = {str(name).strip().casefold(): name for name in data.classes}
    for name, count in data.others.items():
        same = plain.get(name.strip().casefold())
        if same is not None:
            yield (
                f'{data.place}: {count} objects are left out, as their name is {name!r} (first in '
                f'{data.where[name]}), but the class is {same!r}; use one of them'
            )


@check('notes', WARNING, DATA)
def notes(data: Data) -> Iterator[str]:
    """What a data set itself notes about its files."""
    yield from getattr(data.dataset, 'notes', ())


@check('suffix', WARNING, DATA)
def suffix(data: Data) -> Iterator[str]:
    """Images in the folder have another suffix, and are not read."""
    others = other_suffixes(data)
    if others and data.images_before_filters > 0:
        wanted = data.dataset.img_suffix
        yield (
            f'{data.dataset.data_prefix["img_path"]}: {len(others)} files with another suffix than '
            f'{wanted} are not read: {listed(others)}; rename them, or list a second data set with '
            'their img_suffix'
        )


def other_suffixes(data: Data) -> list[str]:
    """Name the images in the folder of a data set that it does not read, due to their suffix."""
    dataset = data.dataset
    wanted = getattr(dataset, 'img_suffix', None)
    prefix = (getattr(dataset, 'data_prefix', None) or {}).get('img_path')
    if wanted is None or not prefix or os.path.isfile(dataset.ann_file):
        return []
    folder = Path(prefix)
    labels = Path(dataset.data_prefix.get('seg_map_path') or '')
    own = [wanted]
    if folder == labels or folder in labels.parents:
        own.append(dataset.seg_map_suffix)
    if not folder.is_dir():
        return []
    images = images_below(folder).paths
    return [os.path.basename(path) for path in images if not path.endswith(tuple(own))]


@check('no-images', ERROR, DATA)
def no_images(data: Data) -> Iterator[str]:
    """A data set has no images, or `filter_cfg` leaves none."""
    if data.images > 0:
        return
    if data.images_before_filters > 0:
        settings = getattr(data.dataset, 'filter_cfg', None)
        yield (
            f'{data.place}: filter_cfg leaves none of {data.images_before_filters} images '
            f'({settings}): they are smaller than min_size, or have no object of '
            f'{listed(data.classes)}{other_names(data)}'
        )
    elif getattr(data.dataset, 'img_suffix', None) is not None:
        got = listed(other_suffixes(data)) or 'none'
        yield f'{data.place}: expected images with the suffix {data.dataset.img_suffix}, got {got}'
    else:
        yield f'{data.place}: has no images'


@check('images-missing', ERROR, DATA)
def images_missing(data: Data) -> Iterator[str]:
    """Images or label maps do not exist."""
    listed_names = functools.cache(names_in)
    absent = []
    for path in data.known.files:
        folder, name = os.path.split(path)
        if name not in listed_names(folder):
            absent.append(path)
    rule = f'{data.place}: images or label maps that do not exist'
    there = {}
    for folder in {os.path.dirname(path) for path in absent}:
        for name in listed_names(folder):
            there[plain_name(f'{folder}/{name}')] = name
    alike = [there[plain_name(path)] for path in absent if plain_name(path) in there]
    if alike:
        rule += f'; there is {listed(alike, 3)}, the same in other capitals or in another Unicode '
        rule += 'form, as after unpacking on a Mac: rename the files as annotated'
    yield from lines_for(rule, absent)


def plain_name(path: str) -> str:
    """Return what paths have in common that differ in capitals or their Unicode form."""
    return normalize('NFC', path).casefold()


def names_in(folder: str) -> set[str]:
    """List a folder, once: to look up every file takes minutes on a network's disk."""
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


# Labels and objects.


@check('label-range', ERROR, DATA)
def label_range(data: Data) -> Iterator[str]:
    """Labels of objects, images or sequences do not belong to any class."""
    count = len(data.classes)
    wrong = sorted(label for label in data.labels.numbers if not 0 <= label < count)
    if wrong and count:
        yield (
            f'{data.place}: expected labels 0 … {count - 1} for {count} classes, got '
            f'{listed(wrong)}; number the classes from 0, or name one more in metainfo.classes'
        )


@check('no-objects', IN_TRAINING, DATA)
def no_objects(data: Data) -> Iterator[str]:
    """No object is left to learn from."""
    steps = [type(step).__name__ for step in steps_of(data.dataset)]
    labels = data.labels
    if labels.unit != INSTANCES or labels.total or 'LoadEmptyAnnotations' in steps:
        return
    reason = f'none of them is of {listed(data.classes)}{other_names(data)}'
    if data.dropped:
        count = data.dropped.total()
        reason = f'{count} of {data.annotations} are dropped ({DROPPED}){other_names(data)}'
    if labels.ignored:
        reason = (
            f'all {labels.ignored} are ignored (iscrowd, ignore or difficult is 1); set it to 0 '
            'for those to learn from'
        )
    yield f'{data.place}: no annotations to train on: {reason}'


@check('boxes-finite', ERROR, DATA)
def boxes_finite(data: Data) -> Iterator[str]:
    """Boxes are not finite numbers."""
    objects = data.known.objects
    wrong = objects.has_box & ~np.isfinite(objects.box).all(1)
    yield from lines_for(f'{data.place}: boxes that are not finite numbers', boxes(data, wrong))


@check('boxes-empty', WARNING, DATA)
def boxes_empty(data: Data) -> Iterator[str]:
    """Boxes to learn from have no width or height, which can make the loss NaN."""
    objects = data.known.objects
    left, top, right, bottom = objects.box.T
    empty = objects.has_box & ~objects.ignored & ((right <= left) | (bottom <= top))
    if data.is_trained:
        yield from lines_for(
            f'{data.place}: boxes without width or height, which can make the loss NaN; correct '
            'them, or leave them out: filter_cfg=dict(bbox_min_size=1) in the data set',
            boxes(data, empty),
        )


@check('boxes-outside', WARNING, DATA)
def boxes_outside(data: Data) -> Iterator[str]:
    """Many boxes leave their image: they are written as x1, y1, x2, y2."""
    objects = data.known.objects
    finite = objects.has_box & np.isfinite(objects.box).all(1)
    box = objects.box[finite]
    beyond = np.maximum(-box[:, :2], box[:, 2:] - objects.image_size[finite])
    leaving = int((beyond > ROUNDING).any(1).sum())
    if leaving > MANY * len(box):
        yield (
            f'{data.place}: {leaving} of {len(box)} boxes leave their image: are they x1, y1, x2, '
            "y2? COCO's are x, y, width, height"
        )


@check('boxes-twice', WARNING, DATA)
def boxes_twice(data: Data) -> Iterator[str]:
    """Annotations repeat another one: a detector that finds each object once misses half."""
    objects = known_boxes(data)
    rows = np.column_stack([objects.image, objects.label, objects.box])
    repeated = len(rows) - len(np.unique(rows, axis=0))
    if repeated > FEW_OBJECTS * len(rows):
        yield (
            f'{data.place}: {repeated} of {len(rows)} annotations repeat another one (class and '
            'box), which counts as an object that is missed; delete them'
        )


def known_boxes(data: Data) -> Any:
    """Return the objects to learn from that have a box, an `OBJECT` for each."""
    objects = data.known.objects
    return objects[objects.has_box & ~objects.ignored]


@check('outlines-beside', WARNING, DATA)
def outlines_beside(data: Data) -> Iterator[str]:
    """Many outlines do not fit their boxes: x and y exchanged, or another resolution."""
    objects = data.known.objects
    chosen = objects.has_box & objects.outline.any(1)
    chosen &= np.isfinite(objects.outline).all(1) & np.isfinite(objects.box).all(1)
    box = objects.box[chosen]
    outline = objects.outline[chosen]
    first = np.maximum(box[:, :2], outline[:, :2])
    last = np.minimum(box[:, 2:], outline[:, 2:])
    shared = np.maximum(last - first, 0).prod(1)
    either = (box[:, 2:] - box[:, :2]).prod(1) + (outline[:, 2:] - outline[:, :2]).prod(1) - shared
    beside = shared < HALF * either
    if beside.sum() > MANY * len(box) and not any(boxes_outside(data)):
        yield (
            f'{data.place}: {beside.sum()} of {len(box)} outlines do not fit their boxes (less '
            'than half in common): are they y, x, or in pixels of another resolution? '
            'Outlines are x1, y1, x2, y2, …'
        )


FAULTS = {
    'masks-missing': (
        DATA,
        'images with an object without a mask, but masks are loaded (with_mask=True); annotate '
        'them, or train a detector of boxes: with_mask=False, a model without mask_head, an '
        "evaluator with metric='bbox'",
    ),
    'xml-objects': (
        DATA,
        "annotation files that are not in Pascal VOC's format, <annotation> with each <object> "
        'directly in it: objects elsewhere, or with a namespace, are not read',
    ),
    'outlines-flat': (
        DATA,
        'images with an object whose segmentation is [x1, y1, …], but not [[x1, y1, …], …], a list '
        'of polygons',
    ),
    'run-lengths': (
        DATA,
        "images with an object whose run lengths are not for its pixels: 'size' is not [height, "
        "width], or 'counts' do not add up, with which pycocotools crashes or finds no overlap",
    ),
    'outlines-text': (
        DATA,
        'images with an outline whose coordinates are text; write numbers without quotation marks',
    ),
    'outlines-far': (
        DATA,
        'images with an outline whose coordinates are not finite, or farther away than '
        f'{FARTHEST} times the longer side of the image',
    ),
    'samples-unreadable': (SAMPLE, 'samples that cannot be loaded'),
    'image-size': (SAMPLE, 'images of another size than annotated'),
    'map-colours': (
        SAMPLE,
        'label maps of colours; expected one channel with the numbers of the classes',
    ),
    'map-size': (SAMPLE, 'label maps of another size than their images'),
    'map-bits': (
        SAMPLE,
        'label maps with numbers above 255, and the step that loads them reads the lower 8 bits',
    ),
}
"""Errors of single samples: the name of the check, when it is asked, and its rule.

`read.py` and `samples.py` find them.
"""


def faults(name: str, rule: str, data: Data) -> Iterator[str]:
    """Yield a line for the files with a fault that reading has found for the check of a name."""
    found = [*data.faults, *data.known.faults, *data.loaded.faults]
    files = dict.fromkeys(fault.text for fault in found if fault.check == name)
    yield from lines_for(f'{data.place}: {rule}', list(files))


for _name, (_asked, _rule) in FAULTS.items():
    _ask = functools.partial(faults, _name, _rule)
    _about = _rule[0].upper() + _rule[1:].partition(';')[0]
    CHECKS[_name] = Check(_name, ERROR, _asked, _about, _ask)


@check('outlines-short', WARNING, DATA)
def outlines_short(data: Data) -> Iterator[str]:
    """Outlines have fewer than three points: training ignores their objects."""
    if data.is_trained:
        rule = (
            'images with an object whose polygons all have fewer than three points, or one has an '
            'odd number of values; training ignores these objects or polygons'
        )
        yield from faults('outlines-short', rule, data)


def boxes(data: Data, chosen: Any) -> list[str]:
    """Name the images of chosen objects, with their boxes."""
    objects = data.known.objects
    found = []
    for number, box in zip(objects.image[chosen], objects.box[chosen], strict=True):
        found.append(f'{data.known.names[number]} ({listed(f"{value:g}" for value in box)})')
    return found


# What the pipeline has loaded.


@check('first-sample', ERROR, SAMPLE)
def first_sample(data: Data) -> Iterator[str]:
    """No sample comes through the whole pipeline."""
    if data.loaded.error is not None:
        yield f'{data.loader}.dataset: its first sample fails: {data.loaded.error}'


@check('map-lossy', WARNING, SAMPLE)
def map_lossy(data: Data) -> Iterator[str]:
    """Label maps are JPEG files, which change the numbers beside each border."""
    if is_lossy(data):
        yield (
            f'{data.place}: label maps with the suffix {data.dataset.seg_map_suffix}: JPEG is '
            'lossy and changes the numbers of the classes beside each border; write them as PNG, '
            'from the original'
        )


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
        f'label maps with other labels than {first} … {last} for {len(data.classes)} classes '
        f'(reduce_zero_label={bool(first)}) and {ignored} for no label '
        '(model.decode_head.ignore_index)'
    )
    if is_lossy(data):
        rule += f'; {data.dataset.seg_map_suffix} is a lossy format: write PNG, from the original'
    elif not first and data.loaded.strange == [len(data.classes)]:
        rule += (
            f'; if {len(data.classes)} is no label, set ignore_index={len(data.classes)} in the '
            'heads and evaluators; files that number the classes from 1 need reduce_zero_label=True'
        )
    unread = getattr(data.dataset, 'ignore_index', ignored)
    if unread != ignored:
        rule += (
            f'; nothing reads ignore_index={unread} of the data set: set ignore_index of the heads'
        )
    yield from faults('map-labels', rule, data)


def reduces_zero(data: Data) -> bool:
    """Whether a data set takes label 0 away."""
    return bool(getattr(data.dataset, 'reduce_zero_label', False))


@check('objects-ignored', IN_TRAINING, SAMPLE)
def objects_ignored(data: Data) -> Iterator[str]:
    """The step that loads objects ignores all of them."""
    labels = data.labels
    if data.known.labels.total and labels.ignored and not labels.total:  # else no-objects says it
        yield (
            f'{data.place}: no annotations to train on: the step that loads them ignores all '
            f'{labels.ignored}; run lengths need poly2mask=True, polygons three points'
        )


@check('nothing-to-learn', IN_TRAINING, SAMPLE)
def nothing_to_learn(data: Data) -> Iterator[str]:
    """All images or pixels are of one class: a model that says nothing else is right."""
    if data.labels.unit in (PIXELS, SAMPLES) and data.classes and not data.loaded.faults:
        yield from class_shortage(data)


@check('one-class', WARNING, SAMPLE)
def one_class(data: Data) -> Iterator[str]:
    """Objects of only one of several classes occur."""
    is_asked = data.labels.unit == INSTANCES and data.is_trained and data.labels.total
    if is_asked and len(data.labelled) > 1:
        yield from class_shortage(data)


def class_shortage(data: Data) -> Iterator[str]:
    """Yield a line if fewer than two classes occur."""
    labels = data.labels
    occurring = [name for label, name in enumerate(data.labelled) if labels.numbers[label]]
    if len(occurring) > 1:
        return
    share = labels.total / max(1, labels.total + labels.ignored)
    remedy = (
        f'label maps hold the numbers 0 … {len(data.classes) - 1} of the classes, 255 is no label'
    )
    if reduces_zero(data):
        remedy = 'reduce_zero_label takes label 0 away: set it to False if it is a class'
    hint = f'; {remedy}' if labels.unit == PIXELS else other_names(data) + one_folder_too_deep(data)
    yield (
        f'{data.place}: expected labels of at least 2 classes, got {listed(occurring) or "none"} '
        f'of {len(data.labelled)} ({share:.1%} of the {labels.unit}, the others are ignored){hint}'
    )


@check('absent-classes', WARNING, SAMPLE)
def absent_classes(data: Data) -> Iterator[str]:
    """Classes do not occur, though there are many labels to learn from."""
    labels = data.labels
    absent = [name for label, name in enumerate(data.labelled) if not labels.numbers[label]]
    total = data.images_counted if labels.unit == PIXELS else labels.total
    enough = ENOUGH.get(labels.unit, math.inf) * len(data.labelled)
    is_asked = data.is_trained and data.images_counted == data.images and total >= enough
    if is_asked and len(data.labelled) - len(absent) > 1:
        yield from lines_for(
            f'{data.place}: classes without {labels.unit}{other_names(data)}', absent
        )


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


@check('objects-tiny', WARNING, SAMPLE)
def objects_tiny(data: Data) -> Iterator[str]:
    """Half of the objects are only a few pixels wide where the network reads them."""
    objects = known_boxes(data)
    sizes = objects.box[:, 2:] - objects.box[:, :2]
    pairs = []  # (width, height) where it is read, and in the file
    for index, item in data.loaded.items:
        for size in sizes[objects.image == index]:
            pairs.append((size * scale_factor(item), size))
    pairs.sort(key=lambda pair: pair[0].prod())
    if not pairs or pairs[len(pairs) // 2][0].prod() >= SMALLEST**2:
        return
    read, own = (f'{width:.1f} x {height:.1f}' for width, height in pairs[len(pairs) // 2])
    yield (
        f'{data.loader}: half of the objects are not larger than {read} pixels where the network '
        f"reads them ({own} in the files): raise Resize's scale, or cut the images into tiles"
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


@check(EXIF, WARNING, SAMPLE)
def exif(data: Data) -> Iterator[str]:
    """Photographs in class folders are stored turned (EXIF), which is ignored."""
    note = turned_note(data.loaded.turned, data.loaded.samples)
    if note is not None:
        yield f'{data.place}: {note}'
