"""Checks of all data sets together, with the model."""

from __future__ import annotations

import contextlib
import filecmp
import functools
import io
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.registry import DATASETS

from mmpola.apps.data_checks.checks.files import one_folder_too_deep
from mmpola.apps.data_checks.report import size_text
from mmpola.apps.data_checks.table import ERROR, EVALUATORS, SPLITS, WARNING, Run, check
from mmpola.config_contents import (
    class_count_problems,
    class_list_problem,
    nodes,
    predicted_classes,
)
from mmpola.messages import first_line, listed


@check('class-count', ERROR, SPLITS)
def class_count(run: Run) -> Iterator[str]:
    """The model predicts another number of classes than the data has."""
    predicted = predicted_classes(run.cfg.get('model'))
    for data in run.sets:
        # In panoptic data, heads of instances predict only the things among the classes.
        heads = [(key, count) for key, count in predicted if count != data.things]
        if data.classes and not data.config.get('return_classes'):  # names read as a text
            for problem in class_count_problems(heads, data.classes, data.loader):
                yield problem + one_folder_too_deep(data)


@check('class-lists', ERROR, SPLITS)
def class_lists(run: Run) -> Iterator[str]:
    """The splits have other classes, or in another order."""
    known = [data for data in run.sets if data.classes]
    for data in known[1:]:
        first = known[0]
        where = f'{data.loader}.dataset'
        problem = class_list_problem(first.classes, first.loader, data.classes, where)
        if problem is not None:
            yield problem


@check('same-images', WARNING, SPLITS)
def same_images(run: Run) -> Iterator[str]:
    """Validation or test reads photographs that training learns from."""
    trained = [data for data in run.sets if data.is_trained]
    for data in run.sets:
        evaluated = [split for split in data.splits if split != 'train']
        if not trained or not evaluated:
            continue
        shared = list(data.names)
        if not data.is_trained:
            names = [name for one in trained for name in one.names]
            shared = images_among(data.names, names, run.whole)
        if shared and all(isinstance(name, str) for name in shared):
            yield (
                f'{evaluated[0]}_dataloader: {len(shared)} of {data.images} images are in '
                f'train_dataloader too ({listed(shared, 3)}): a model is not judged by what it '
                'was trained on'
            )


MANY_IMAGES = 20_000
"""Of more images, the quick check compares the paths only: a network's disk takes minutes."""

MIDDLE = 65_536
"""Bytes in the middle of files of one size that are compared before whole files are."""


def images_among(names: Sequence[Any], others: Sequence[Any], whole: bool) -> list[str]:
    """Return the images that are among others: the same file, or the same content."""
    folder_of = functools.lru_cache(maxsize=None)(os.path.realpath)

    def real(path: str) -> str:
        return os.path.join(folder_of(os.path.dirname(path)), os.path.basename(path))

    own = [name for name in names if isinstance(name, str)]
    known = {real(name) for name in others if isinstance(name, str)}
    found = [name for name in own if real(name) in known]
    if found or (len(own) + len(known) > MANY_IMAGES and not whole):
        return found
    by_size: dict[int, list[str]] = {}
    for path in known:
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(path)
    middles = functools.lru_cache(maxsize=None)(middle_of)
    for name in own:
        size = os.path.getsize(name) if os.path.isfile(name) else -1
        alike = [path for path in by_size.get(size, ()) if middles(path) == middles(name)]
        if any(filecmp.cmp(name, path, shallow=False) for path in alike):
            found.append(name)
    return found


def middle_of(path: str) -> int:
    """Return a hash of the bytes in the middle of a file."""
    with open(path, 'rb') as file:
        file.seek(max(0, os.path.getsize(path) - MIDDLE) // 2)
        return hash(file.read(MIDDLE))


@check('image-scale', WARNING, SPLITS)
def image_scale(run: Run) -> Iterator[str]:
    """Images are resized to very different sizes in training and evaluation."""
    trained = [size for data in run.sets if data.is_trained for size in data.loaded.scales]
    if not trained:
        return
    for data in run.sets:
        sizes = data.loaded.scales
        if data.is_trained or not sizes:
            continue
        smallest, largest = (
            math.sqrt(math.prod(end(trained, key=math.prod))) for end in (min, max)
        )
        middle = math.sqrt(math.prod(sorted(sizes, key=math.prod)[len(sizes) // 2]))
        if not smallest / APART <= middle <= largest * APART:
            yield (
                f'{data.loader}: whole images are resized to {size_text(sizes)}, but those of '
                f'train_dataloader to {size_text(trained)}: objects have other sizes than in '
                "training; set the scale of the test pipeline's Resize"
            )


APART = 1.5
"""Sides of images may be so many times larger or smaller in evaluation than in training."""


@check('outer-pipeline', ERROR, EVALUATORS)
def outer_pipeline(run: Run) -> Iterator[str]:
    """The pipeline of a wrapper, such as MultiImageMixDataset, fails."""
    for split in run.splits if run.whole else ():
        dataset = (run.cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
        wrappers = [node for _, node in nodes(dataset, '') if {'dataset', 'datasets'} & set(node)]
        if not any('pipeline' in wrapper for wrapper in wrappers):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                DATASETS.build(dict(dataset))[0]
        except Exception as error:  # transforms raise exceptions of any type
            yield f'{split}_dataloader.dataset: its first sample fails: {first_line(error)}'
