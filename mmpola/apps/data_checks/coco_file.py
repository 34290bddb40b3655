"""Read an annotation file in COCO layout: its lists, and the fields that mmdet reads of entries."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mmpola.apps.data_checks.report import DatasetReport, add_line

POLYGONS = re.compile(rb'"segmentation"\s*:\s*\[\s*(?:\[\s*[\d.+-][\d\s.,eE+-]*\][\s,]*)+\]')
"""A segmentation of one or more polygons, in which all coordinates are numbers.

These need no check, but are most of a file: without them COCO's file parses in a quarter of the
time and memory. Whatever does not match stays and is checked, such as a list without polygons, a
list of bare numbers, or coordinates that are NaN or texts.
"""

SOME_POLYGON = b'"segmentation":[[]]'
"""Takes the place of what `POLYGONS` matches."""

LARGEST_EXACT_INTEGER = 2**53
"""Integers up to this are exact as floating-point numbers, which is what boxes and sizes become."""

ABSENT = object()
"""Stands for the value of a field that an entry does not have."""


@dataclass(frozen=True)
class CocoFile:
    """The content of an annotation file whose lists and fields are as they should be.

    Attributes:
        path: of the file.
        images, annotations, categories: its lists; the fields of their entries are in
            `FIELDS_OF_LISTS`.
    """

    path: Path
    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]

    @cached_property
    def size_of_image(self) -> dict[Any, tuple[float, float]]:
        """(width, height) by image id."""
        return {image['id']: (image['width'], image['height']) for image in self.images}

    @cached_property
    def name_of_category(self) -> dict[Any, str]:
        """Name by category id."""
        return {category['id']: category['name'] for category in self.categories}


class Field(NamedTuple):
    """A field of the entries of a list: its name, and its rule in words and as a function."""

    name: str
    rule: str
    is_valid: Callable[[Any], bool]


def is_id(value: Any) -> bool:
    return isinstance(value, int | float | str)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST_EXACT_INTEGER
    return isinstance(value, float) and math.isfinite(value)


def is_box(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 4:
        return False
    return all(is_number(number) for number in value)


def is_segmentation(value: Any) -> bool:
    """Whether a value is polygons, run lengths or no mask, as mmdet tells them apart."""
    if isinstance(value, list):
        return all(is_polygon(polygon) for polygon in value)
    is_run_lengths = isinstance(value, dict)
    is_no_mask = value is ABSENT or not value
    return is_run_lengths or is_no_mask


def is_polygon(value: Any) -> bool:
    return isinstance(value, list) and all(is_number(number) for number in value)


FIELDS_OF_LISTS = {
    'images': (
        Field('id', 'a number or a text', is_id),
        Field('file_name', 'a text', is_text),
        Field('width', 'a finite number', is_number),
        Field('height', 'a finite number', is_number),
    ),
    'annotations': (
        Field('id', 'a number or a text', is_id),
        Field('image_id', 'a number or a text', is_id),
        Field('category_id', 'a number or a text', is_id),
        Field('bbox', '4 finite numbers', is_box),
        Field('area', 'a finite number', is_number),
        Field(
            'segmentation',
            'polygons [[x, y, …], …] of finite numbers, or run lengths',
            is_segmentation,
        ),
    ),
    'categories': (
        Field('id', 'a number or a text', is_id),
        Field('name', 'a text', is_text),
    ),
}
"""The lists of an annotation file, and the fields of the entries of each."""


def read_coco_file(
    path: Path, may_lack_annotations: bool, report: DatasetReport
) -> CocoFile | None:
    """Read an annotation file; return None if it breaks a rule of COCO's structure.

    Args:
        path: path of the file.
        may_lack_annotations: whether the list of annotations may be missing.
        report: its `problems` get a line for each broken rule.
    """
    try:
        content = json.loads(POLYGONS.sub(SOME_POLYGON, path.read_bytes()))
    except (ValueError, RecursionError) as error:
        report.problems.append(f'{path}: not a COCO annotation file ({error!r})')
        return None
    if not isinstance(content, dict):
        report.problems.append(
            f'{path}: expected an object with {", ".join(FIELDS_OF_LISTS)}, '
            f'got {shortened(content)}'
        )
        return None
    if may_lack_annotations:
        content.setdefault('annotations', [])

    problems: list[str] = []
    for section, fields in FIELDS_OF_LISTS.items():
        entries = content.get(section, ABSENT)
        if not isinstance(entries, list):
            problems.append(f'{path}: {section}: expected a list, got {shortened(entries)}')
            continue
        others = [shortened(entry) for entry in entries if not isinstance(entry, dict)]
        if others:
            add_line(problems, f'{path}: {section}: expected objects, got others', others)
            continue
        for field in fields:
            wrong = wrong_values(entries, field)
            rule = f'{path}: {section}: expected {field.rule} as {field.name}, got others'
            add_line(problems, rule, wrong)
    if problems:
        report.problems += problems
        return None
    return CocoFile(path, content['images'], content['annotations'], content['categories'])


def wrong_values(entries: list[dict[str, Any]], field: Field) -> list[str]:
    """List the invalid values of a field, each with the id of its entry or, without one, its place.

    The place is counted from 0.
    """
    wrong = []
    for number, entry in enumerate(entries):
        value = entry.get(field.name, ABSENT)
        if field.is_valid(value):
            continue
        place = f'entry {number}'
        if is_id(entry.get('id')):
            place = f'id {entry["id"]}'
        wrong.append(f'{shortened(value)} ({place})')
    return wrong


def shortened(value: Any) -> str:
    """Return a value as Python writes it, shortened; 'none' for a field that is absent."""
    if value is ABSENT:
        return 'none'
    return reprlib.repr(value)
