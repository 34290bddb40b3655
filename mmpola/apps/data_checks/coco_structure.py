"""Check the structure of an annotation file in COCO layout: lists, fields and types of values."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmpola.apps.data_checks.kinds import apply

MISSING = object()
"""Stands for the value of a field that an entry does not have."""

LARGEST = 2**53
"""Integers up to this are exact as floating-point numbers, which is what boxes and sizes become."""


class _Field(NamedTuple):
    """A field that every entry of a list must have.

    Attributes:
        name: of the field.
        rule: what its value must be, in words.
        valid: whether a value is that.
    """

    name: str
    rule: str
    valid: Callable[[Any], bool]


def structure_problems(path: Path, content: Any, test_mode: bool) -> list[str]:
    """Return a line for every rule of COCO's structure that an annotation file breaks.

    Args:
        path: of the file, for the lines.
        content: of the file, decoded.
        test_mode: whether the file may lack annotations.
    """
    if not isinstance(content, dict):
        return [f'{path}: expected an object with {", ".join(FIELDS)}, got {_shown(content)}']
    problems: list[str] = []
    for section, fields in FIELDS.items():
        entries = content.get(section, MISSING)
        if entries is MISSING and section == 'annotations' and test_mode:
            continue
        if not isinstance(entries, list):
            problems.append(f'{path}: {section}: expected a list, got {_shown(entries)}')
            continue
        strange = [_shown(entry) for entry in entries if not isinstance(entry, dict)]
        apply([(problems, f'{path}: {section}: expected objects, got others', strange)])
        if strange:
            continue
        for field in fields:
            wrong = [
                f'{_shown(entry.get(field.name, MISSING))} ({_place(entry, number)})'
                for number, entry in enumerate(entries)
                if not field.valid(entry.get(field.name, MISSING))
            ]
            rule = f'{path}: {section}: expected {field.rule} as {field.name}, got others'
            apply([(problems, rule, wrong)])
    return problems


def is_finite(polygons: list[list[Any]]) -> bool:
    """Whether polygons consist of finite numbers, or are none."""
    numbers = itertools.chain.from_iterable(polygons)
    return all(_is_number(number) and math.isfinite(number) for number in numbers)


def _is_id(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(_is_number, value))


def _is_segmentation(value: Any) -> bool:
    """Whether mmdet takes a value for polygons, run lengths or none, whatever its numbers are."""
    if isinstance(value, list):
        return all(isinstance(polygon, list) and not _is_nested(polygon) for polygon in value)
    return not value or value is MISSING or isinstance(value, dict)


def _is_nested(polygon: list[Any]) -> bool:
    return any(isinstance(number, list | dict) for number in polygon)


def _shown(value: Any) -> str:
    """Return a value as Python writes it, shortened."""
    return 'none' if value is MISSING else reprlib.repr(value)


def _place(entry: dict[str, Any], number: int) -> str:
    """Name an entry of a list by its id, or by its number from 0 where the id is unusable."""
    key = entry.get('id')
    return f'id {key}' if _is_id(key) else f'entry {number}'


ID = _Field('id', 'a number or a text', _is_id)

FIELDS = {
    'images': (
        ID,
        _Field('file_name', 'a text', _is_text),
        _Field('width', 'a number', _is_number),
        _Field('height', 'a number', _is_number),
    ),
    'annotations': (
        ID,
        _Field('image_id', 'a number or a text', _is_id),
        _Field('category_id', 'a number or a text', _is_id),
        _Field('bbox', '4 numbers', _is_box),
        _Field('area', 'a number', _is_number),
        _Field('segmentation', 'polygons [[x, y, …], …] or run lengths', _is_segmentation),
    ),
    'categories': (ID, _Field('name', 'a text', _is_text)),
}
"""The lists of an annotation file and the fields of their entries."""
