"""Checks of what a data set reads: files, classes, images and label maps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from mmpola.apps.data_checks.read import Data
from mmpola.apps.data_checks.table import DATA, ERROR, FILES, READING, WARNING, Run, check, some
from mmpola.config_contents import evaluators
from mmpola.messages import UsageError, first_line, listed
from mmpola.read_image import IMAGE_SUFFIXES


@check('files-missing', ERROR, FILES)
def files_missing(run: Run) -> Iterator[str]:
    """Annotation files or folders of the config do not exist."""
    for data in run.sets:
        for path in data.absent:
            yield f'{data.loader}: {path}: not found'
    for split in run.splits:
        for key, node in evaluators(run.cfg, split):
            truth = node.get('ann_file')
            if truth and not Path(truth).exists():
                yield f'{key}.ann_file: {truth}: not found'


@check('unreadable', ERROR, READING)
def unreadable(data: Data) -> Iterator[str]:
    """The data set cannot be built, or cannot read its annotations."""
    if data.error is None:
        return
    if isinstance(data.error, UsageError):  # of the constructors of sequences
        yield from str(data.error).splitlines()
        return
    message = '; '.join(str(data.error).strip().splitlines())
    reason = f'{data.kind} cannot read it ({type(data.error).__name__}: {message})'
    if data.raw is not None:
        wrong = unreadable_annotations(data)
        if wrong:
            reason = f'annotations that training cannot read ({len(wrong)}): {listed(wrong)}'
    where = data.place if data.paths else f'{data.loader}.dataset'
    yield f'{where}: {reason}'


def unreadable_annotations(data: Data) -> list[str]:
    """Name the annotations of a file that a data set cannot read, with the reason."""
    found = []
    for key, image in data.raw.imgs.items():
        for annotation in data.raw.imgToAnns.get(key, []):
            raw = {'raw_img_info': {**image, 'img_id': key}, 'raw_ann_info': [annotation]}
            try:
                data.dataset.parse_data_info(raw)
            except Exception as error:  # whatever a data set raises about a field
                found.append(f'id {annotation.get("id")} ({first_line(error)})')
    return found


@check('classes-comma', ERROR, DATA)
def classes_comma(data: Data) -> Iterator[str]:
    """`metainfo.classes` is one name without a comma behind it."""
    names = (getattr(data.dataset, 'metainfo', None) or {}).get('classes')
    if isinstance(names, str):  # MMEngine takes its letters for the classes
        yield (
            f'{data.loader}.dataset.metainfo.classes: expected several names or one with a comma, '
            f"('{names}',), got '{names}'"
        )


@check('classes-absent', ERROR, DATA)
def classes_absent(data: Data) -> Iterator[str]:
    """The annotation file has no category of a class of the config."""
    names = category_names(data)
    lacking = [name for name in data.classes if name not in names]
    if names:
        yield from some(
            f'{data.place}: classes of the config without a category; set metainfo.classes, the '
            f'file has {listed(names)}',
            lacking,
        )


@check('classes-twice', ERROR, DATA)
def classes_twice(data: Data) -> Iterator[str]:
    """Several categories or classes have one name."""
    twice = [name for name, count in Counter(numbered_names(data)).items() if count > 1]
    yield from some(
        f'{data.place}: several categories of one name; merge them in the file, or rename one',
        twice,
    )
    numbered = getattr(data.dataset, 'cat2label', None)
    if numbered and data.raw is None and len(numbered) != len(data.classes):  # LVIS, VOC
        yield (
            f'{data.place}: metainfo.classes: expected each category once, got '
            f'{len(data.classes)} names for {len(numbered)} categories'
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


def category_names(data: Data) -> list[str]:
    """Return the names of all categories of an annotation file in COCO layout; else []."""
    if data.raw is None or not hasattr(data.dataset, 'cat2label'):
        return []
    return [category['name'] for category in data.raw.dataset['categories']]


def numbered_names(data: Data) -> list[str]:
    """Return the names of a file's categories in the order of the labels they get; else []."""
    if data.raw is None:
        return []
    labels = getattr(data.dataset, 'cat2label', ())
    return [data.raw.cats[category]['name'] for category in labels]


def other_names(data: Data) -> str:
    """Return the names that the first annotations in Pascal VOC's format have, for a message."""
    names: list[str | None] = []
    for info in data.first:
        if 'xml_path' in info:
            names += [name.text for name in ElementTree.parse(info['xml_path']).iterfind('*/name')]
    if not names:
        return ''
    return f'; the annotations have {listed(sorted({str(name) for name in names}))}'


@check('image-ids', ERROR, DATA)
def image_ids(data: Data) -> Iterator[str]:
    """Several images of an annotation file have one id."""
    if data.raw is not None:
        count = len(data.raw.dataset['images'])
        if len(data.raw.imgs) < count:
            yield f'{data.place}: {count} images have {len(data.raw.imgs)} different ids'


@check('annotation-ids', WARNING, DATA)
def annotation_ids(data: Data) -> Iterator[str]:
    """Annotations name an image or category that does not exist: mmdet drops them."""
    if data.raw is None:
        return
    coco = data.raw
    strays = []
    for annotation in coco.dataset.get('annotations', []):
        has_category = annotation.get('category_id', next(iter(coco.cats), None)) in coco.cats
        if annotation['image_id'] not in coco.imgs or not has_category:  # panoptic ones have none
            strays.append(annotation['id'])
    yield from some(
        f'{data.place}: ids of annotations whose image or category does not exist: mmdet drops '
        'them',
        strays,
    )


@check('notes', WARNING, DATA)
def notes(data: Data) -> Iterator[str]:
    """What a data set itself notes about its files."""
    yield from getattr(data.dataset, 'notes', ())


@check('suffix', WARNING, DATA)
def suffix(data: Data) -> Iterator[str]:
    """Images in the folder have another suffix, and are not read."""
    others = other_suffixes(data)
    if others and data.listed > 0:
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
    others = []
    for path in sorted(folder.rglob('*')):
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.endswith(tuple(own)):
            others.append(path.name)
    return others


@check('no-images', ERROR, DATA)
def no_images(data: Data) -> Iterator[str]:
    """A data set has no images, or `filter_cfg` leaves none."""
    if data.images > 0:
        return
    if data.listed > 0:
        settings = getattr(data.dataset, 'filter_cfg', None)
        yield (
            f'{data.place}: filter_cfg leaves none of {data.listed} images ({settings}): they are '
            f'smaller than min_size, or have no object of {listed(data.classes)}{other_names(data)}'
        )
    elif getattr(data.dataset, 'img_suffix', None) is not None:
        got = listed(other_suffixes(data)) or 'none'
        yield f'{data.place}: expected images with the suffix {data.dataset.img_suffix}, got {got}'
    else:
        yield f'{data.place}: has no images'


@check('images-missing', ERROR, DATA)
def images_missing(data: Data) -> Iterator[str]:
    """Images or label maps do not exist."""
    files = data.known.files if data.known is not None else ()
    yield from some(f'{data.place}: images or label maps that do not exist', absent_files(files))


def absent_files(paths: Sequence[str]) -> list[str]:
    """Return the files that do not exist.

    Each folder is listed once: to look up every file takes minutes on a network's disk.
    """
    names: dict[str, set[str]] = {}
    absent = []
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in names:
            names[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if name not in names[folder]:
            absent.append(path)
    return absent
