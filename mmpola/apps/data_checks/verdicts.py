"""What the counts of a data set mean: nothing to learn from, one class only, or classes without."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mmengine.config import Config

from mmpola.apps.data_checks.report import INSTANCES, PIXELS, DatasetReport, add_line
from mmpola.apps.data_checks.samples import Loaded, Loader, steps_of
from mmpola.messages import listed
from mmpola.read_image import IMAGE_SUFFIXES

ENOUGH = {INSTANCES: 20, PIXELS: 2}
"""Labels (label maps for pixels) per class, from which on a class without any is a mistake."""

TOO_MUCH = 2
"""Padding of training images to more than so many times their pixels is named."""

TRIES = 8
"""Training images whose size is looked at: random scales make some of them small."""


def check_files(dataset: Any, report: DatasetReport) -> None:
    """Name images in the folder of a data set that it does not read, as their suffix is another."""
    suffix = getattr(dataset, 'img_suffix', None)
    prefix = (getattr(dataset, 'data_prefix', None) or {}).get('img_path')
    if suffix is None or not prefix or os.path.isfile(dataset.ann_file):
        return
    folder = Path(prefix)
    labels = Path(dataset.data_prefix.get('seg_map_path') or '')
    own = [suffix]
    if folder == labels or folder in labels.parents:
        own.append(dataset.seg_map_suffix)
    others = []
    for path in sorted(folder.rglob('*')):
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.endswith(tuple(own)):
            others.append(path.name)
    if report.listed == 0:
        got = listed(others) or 'none'
        report.problems.append(f'{folder}: expected images with the suffix {suffix}, got {got}')
    elif others:
        report.warnings.append(
            f'{folder}: {len(others)} files with another suffix than {suffix} are not read: '
            f'{listed(others)}; rename them, or list a second data set with their img_suffix'
        )


def check_labels(dataset: Any, report: DatasetReport) -> None:
    """Something is left to learn from, and labels are in the range of the classes."""
    place = report.place
    if report.images == 0:
        if report.listed:
            settings = getattr(dataset, 'filter_cfg', None)
            report.problems.append(
                f'{place}: filter_cfg leaves none of {report.listed} images ({settings}): they are '
                f'smaller than min_size, or have no object of {listed(report.classes)}'
                f'{other_names(report)}'
            )
        elif not report.problems:
            report.problems.append(f'{place}: has no images')
        return
    numbered = getattr(dataset, 'cat2label', None)
    if numbered and report.raw is None and len(numbered) != len(report.classes):  # LVIS, VOC
        report.problems.append(
            f'{place}: metainfo.classes: expected each category once, got {len(report.classes)} '
            f'names for {len(numbered)} categories'
        )
    wrong = sorted(label for label in report.numbers if not 0 <= label < len(report.classes))
    if wrong and report.classes and report.unit != PIXELS:
        count = len(report.classes)
        report.problems.append(
            f'{place}: expected labels 0 … {count - 1} for {count} classes, got {listed(wrong)}; '
            'number the classes from 0, or name one more in metainfo.classes'
        )
    steps = [type(step).__name__ for step in steps_of(dataset)]
    if report.unit == INSTANCES and report.labels == 0 and 'LoadEmptyAnnotations' not in steps:
        reason = f'none of them is of {listed(report.classes)}{other_names(report)}'
        if report.ignored:
            reason = (
                f'all {report.ignored} are ignored (iscrowd, ignore or difficult is 1); set it to '
                '0 for those to learn from'
            )
        add_verdict(report, f'{place}: no annotations to train on: {reason}')


def add_verdict(report: DatasetReport, line: str) -> None:
    """Add a line that makes a training run useless, and is a warning for other splits."""
    if 'train' in report.splits:
        report.problems.append(line)
    else:
        report.warnings.append(line)


def other_names(report: DatasetReport) -> str:
    """Return the names that the first annotations in Pascal VOC's format have, for a message."""
    names: list[str | None] = []
    for info in report.first:
        if 'xml_path' in info:
            names += [name.text for name in ElementTree.parse(info['xml_path']).iterfind('*/name')]
    if not names:
        return ''
    return f'; the annotations have {listed(sorted({str(name) for name in names}))}'


def is_inconclusive(loaded: Loaded, report: DatasetReport) -> bool:
    """Whether a few samples show nothing to learn from, which all of them may have."""
    if loaded.unit == INSTANCES:
        return report.labels > 0 and loaded.ignored > 0 and not loaded.numbers
    return not report.labels and len(report.classes) > 1 and len(loaded.numbers) < 2


def check_loaded(dataset: Any, report: DatasetReport) -> None:
    """The steps that load leave something to learn from, of every class."""
    place = report.place
    classes = report.labelled
    occurring = [name for label, name in enumerate(classes) if report.numbers[label]]
    absent = [name for label, name in enumerate(classes) if not report.numbers[label]]
    is_trained = 'train' in report.splits
    if report.unit == INSTANCES and report.ignored and not report.labels:
        add_verdict(
            report,
            f'{place}: no annotations to train on: the step that loads them ignores all '
            f'{report.ignored}; run lengths need poly2mask=True, polygons three points',
        )
        return
    if len(classes) > 1 and len(occurring) < 2 and (is_trained or report.unit == PIXELS):
        report.warnings.append(
            f'{place}: expected labels of at least 2 of {len(classes)} classes, got '
            f'{listed(occurring) or "none"} ({shares(dataset, report)}'
        )
        return
    total = report.labels
    if report.unit == PIXELS:
        total = report.counted
    enough = ENOUGH.get(report.unit, math.inf) * len(classes)
    if is_trained and report.counted == report.images and total >= enough:
        rule = f'{place}: classes without {report.unit}{other_names(report)}'
        add_line(report.warnings, rule, absent)


def shares(dataset: Any, report: DatasetReport) -> str:
    """Describe which part of the labels training learns from, and what to do about it."""
    total = report.labels + report.ignored
    text = f'{report.labels / max(1, total):.1%} of the {report.unit}, the others are ignored)'
    if report.unit != PIXELS:
        return text + other_names(report)
    if getattr(dataset, 'reduce_zero_label', False):
        return f'{text}; reduce_zero_label takes label 0 away: set it to False if it is a class'
    last = len(report.classes) - 1
    return f'{text}; label maps hold the numbers 0 … {last} of the classes, 255 is no label'


def check_padding(cfg: Config, dataset: Any, report: DatasetReport, load: Loader) -> None:
    """Warn if the data preprocessor pads training images to many times their pixels."""
    size = (cfg.model.get('data_preprocessor') or {}).get('size')
    if 'train' not in report.splits or size is None or load.shape is None:
        return
    largest = load.shape
    for index in range(min(TRIES, report.images)):
        if size[0] * size[1] <= TOO_MUCH * largest[0] * largest[1]:
            return
        shape = tuple(dataset[index]['inputs'].shape[-2:])
        largest = max(largest, shape, key=math.prod)
    factor = size[0] * size[1] / math.prod(largest)
    report.warnings.append(
        f'model.data_preprocessor.size: expected the size of training images, '
        f'{largest[0]} x {largest[1]}, got {size[0]} x {size[1]}: padding makes {factor:.0f} times '
        'the pixels of each'
    )
