"""Checks of all data sets together, with the model."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator

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
from mmpola.messages import first_line


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
