"""Checks of what a data set reads: files, classes, images and label maps."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mmpola.apps.data_checks.read import Data, loads_masks
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


@check('numbers-as-text', ERROR, READING)
def numbers_as_text(data: Data) -> Iterator[str]:
    """Numbers of an annotation file are written as text."""
    if data.raw is not None:
        names: Sequence[str] = ANNOTATION_NUMBERS
        if loads_masks(data.dataset):
            names = (*names, 'segmentation')
        wrong = [
            *text_fields(data.raw.dataset.get('images', []), IMAGE_NUMBERS, 'image '),
            *text_fields(data.raw.dataset.get('annotations', []), names, ''),
        ]
        yield from some(f'{data.place}: numbers that are written as text', wrong)


IMAGE_NUMBERS = ('width', 'height')
ANNOTATION_NUMBERS = ('bbox', 'area', 'category_id', 'iscrowd')
"""Fields of files in COCO layout that hold numbers, or lists of them."""


def text_fields(entries: Sequence[Any], fields: Sequence[str], noun: str) -> Iterator[str]:
    """Name the entries of a file that have a text in one of the fields."""
    for entry in entries:
        for name in fields:
            text = first_text(entry.get(name)) if isinstance(entry, dict) else None
            if text is not None:
                yield f'{noun}id {entry.get("id")} ({name}: "{text}" is text)'


def first_text(value: Any) -> str | None:
    """Return the first text in a value, or in lists in it; None if there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and {str, list} & set(map(type, value)):
        return next((text for text in map(first_text, value) if text is not None), None)
    return None


@check('unreadable', ERROR, READING)
def unreadable(data: Data) -> Iterator[str]:
    """The data set cannot be built, or cannot read its annotations."""
    if data.error is None or any(numbers_as_text(data)):
        return
    if isinstance(data.error, UsageError):  # of the constructors of sequences
        yield from str(data.error).splitlines()
        return
    message = '; '.join(str(data.error).strip().splitlines())
    reason = f'{data.kind} cannot read it ({type(data.error).__name__}: {message})'
    wrong = unreadable_annotations(data) + unreadable_fields(data.seen.file)
    if wrong:
        reason = f'annotations that training cannot read ({len(wrong)}): {listed(wrong)}'
    where = data.place if data.paths else f'{data.loader}.dataset'
    yield f'{where}: {reason}{back_slashes([message])}'


def unreadable_annotations(data: Data) -> list[str]:
    """Name the annotations of a file that a data set cannot read, with the reason."""
    found = []
    for key, image in data.raw.imgs.items() if data.raw is not None else ():
        for annotation in data.raw.imgToAnns.get(key, []):
            raw = {'raw_img_info': {**image, 'img_id': key}, 'raw_ann_info': [annotation]}
            try:
                data.dataset.parse_data_info(raw)
            except Exception as error:  # whatever a data set raises about a field
                found.append(f'id {annotation.get("id")} ({first_line(error)})')
    return found


def unreadable_fields(file: str) -> list[str]:
    """Name the fields that are no numbers in the folder of a file in Pascal VOC's format."""
    found = []
    for path in sorted(Path(file).parent.glob('*.xml')) if Path(file).is_file() else ():
        with contextlib.suppress(ElementTree.ParseError):  # the data set's own error names it
            for element in ElementTree.parse(path).iter():
                number = VOC_NUMBERS.get(element.tag)
                try:
                    if number is not None:
                        number(element.text)
                except (TypeError, ValueError):
                    found.append(f'{path} ({element.tag}: "{element.text}" is no number)')
    return found


VOC_NUMBERS: dict[str, Callable[[Any], float]] = {
    **dict.fromkeys(('width', 'height', 'difficult'), int),
    **dict.fromkeys(('xmin', 'ymin', 'xmax', 'ymax'), float),
}
"""Fields of files in Pascal VOC's format that mmdet reads as numbers, and how."""


def back_slashes(texts: Iterable[str]) -> str:
    """Return the remedy for paths that were written on Windows; else ''."""
    if any('\\' in text for text in texts):
        return '; paths with back slashes, as Windows has them: write / instead'
    return ''


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
    """Return the names of objects that are none of the classes, for a message."""
    if not data.seen.others:
        return ''
    return f'; the annotations have {listed(sorted(data.seen.others))}'


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
    causes: dict[str, list[Any]] = {}
    for dropped in data.seen.dropped:
        causes.setdefault(dropped.cause, []).append(dropped.id)
    total = data.seen.annotations
    if data.raw is not None:
        strays = []
        for annotation in data.raw.dataset.get('annotations', []):
            if annotation['image_id'] not in data.raw.imgs:
                strays.append(annotation.get('id'))
        total += len(strays)
        if strays:
            causes['no such image'] = strays
    if not causes:
        return
    texts = [f'{cause}: {len(ids)}, id {listed(ids, 3)}' for cause, ids in causes.items()]
    text = (
        f'{data.place}: {sum(map(len, causes.values()))} of {total} annotations are dropped '
        f'({"; ".join(texts)})'
    )
    files = [path.resolve() for path in data.paths]
    for key, evaluator in [one for split in data.splits for one in evaluators(data.cfg, split)]:
        if data.seen.dropped and Path(evaluator.get('ann_file') or '').resolve() in files:
            text += f'; {key} reads them from the file, and AP counts them as missed'
            break
    yield text


@check('classes-spelling', WARNING, DATA)
def classes_spelling(data: Data) -> Iterator[str]:
    """Names of objects differ from a class in blanks or capitals only: they are left out."""
    plain = {plain_name(name): name for name in data.classes}
    for name, count in data.seen.others.items():
        same = plain.get(plain_name(name))
        if same is not None:
            yield (
                f'{data.place}: {count} objects are left out, as their name is {name!r} (first in '
                f'{data.seen.where[name]}), but the class is {same!r}; use one of them'
            )


def plain_name(name: str) -> str:
    """Return a name without what is overlooked: capitals, and blanks around it."""
    return name.strip().casefold()


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
    absent = absent_files(files)
    rule = f'{data.place}: images or label maps that do not exist{back_slashes(absent)}'
    names = {unicodedata.normalize('NFC', path) for path in absent}
    for folder in {os.path.dirname(path) for path in absent}:
        there = os.listdir(folder) if os.path.isdir(folder) else []
        if names & {unicodedata.normalize('NFC', f'{folder}/{name}') for name in there}:
            rule += '; the files have the same names in another Unicode form, as after unpacking '
            rule += 'on a Mac: rename them to that of the annotations'
            break
    yield from some(rule, absent)


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
