"""What the samples of a data set hold once the steps of its pipeline have loaded them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmpola.apps.data_checks.report import INSTANCES, PIXELS, SAMPLES, DatasetReport, add_line
from mmpola.messages import first_line, listed

FEW = 32
"""Samples that the quick check loads, evenly spread over the data set."""

Results = dict[str, Any]
"""What a data set and the steps of its pipeline know about a sample."""


class Labels(NamedTuple):
    """The labels of a sample: their unit, the number of each, and how many training ignores."""

    unit: str
    numbers: Counter[int]
    ignored: int = 0


def labels_of(results: Results) -> Labels | None:
    """Return the labels in what a pipeline has loaded, or else in what the data set itself knows.

    Pixels that are ignored are among `numbers`: only the model's heads know which labels are.
    """
    if 'gt_bboxes_labels' in results:
        labels = np.asarray(results['gt_bboxes_labels'])
        flags = np.asarray(results.get('gt_ignore_flags', np.zeros(len(labels))), bool)
        return Labels(INSTANCES, Counter(labels[~flags].tolist()), int(flags.sum()))
    if 'gt_seg_map' in results:
        values, numbers = np.unique(results['gt_seg_map'], return_counts=True)
        pixels = zip(values.tolist(), numbers.tolist(), strict=True)
        return Labels(PIXELS, Counter(dict(pixels)))
    if 'instances' in results:
        kept = [one for one in results['instances'] if not one.get('ignore_flag')]
        found = Counter(one['bbox_label'] for one in kept if 'bbox_label' in one)
        return Labels(INSTANCES, found, len(results['instances']) - len(kept))
    if 'gt_label' in results:
        return Labels(SAMPLES, Counter(np.atleast_1d(results['gt_label']).tolist()))
    return None


def files_of(info: Results) -> list[str]:
    """List the image and the label map of a sample; some data sets have several images in one."""
    paths: list[str] = []
    for key in ('img_path', 'seg_map_path'):
        value = info.get(key) or []
        paths += [value] if isinstance(value, str) else value
    return paths


def steps_of(dataset: Any) -> list[Any]:
    """List the steps of a data set's pipeline; of test-time augmentation, those of one variant."""
    steps: list[Any] = []
    for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ()):
        variants = getattr(step, 'subroutines', None)
        steps += variants[0].transforms if variants else [step]
    return steps


class Loader:
    """Loads samples with the steps of a pipeline that bring the image and the annotations.

    These are found by running the whole pipeline: they are the ones after which there is an image
    or another `gt_…`. A data set without a pipeline of steps loads its whole items.

    Args:
        dataset: the data set.
        indices: of the samples that may be tried until one can be loaded.

    Attributes:
        error: why none of these samples came through the pipeline, None if one did.
        shape: (height, width) of the network's input from that sample, None if it is unknown.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.steps: list[Any] = []
        self.error: str | None = None
        self.shape: tuple[int, int] | None = None
        for index in indices:
            try:
                self._run(index)
            except Exception as error:  # transforms of other packages raise exceptions of any type
                self.error = self.error or first_line(error)
            else:
                self.error = None
                return

    def _run(self, index: int) -> None:
        """Run the whole pipeline on a sample."""
        steps = steps_of(self.dataset)
        if not steps:
            self.dataset[index]
            return
        found = []
        results = self.dataset.get_data_info(index)
        for step in steps:
            known = set(results)
            results = step(results)
            if results is None:  # random steps may drop a sample
                break
            new = set(results) - known
            if 'img' in new or any(key.startswith('gt_') for key in new):
                found.append(step)
                self.steps = max(self.steps, found, key=len)
        if results is not None and hasattr(results.get('inputs'), 'shape'):
            self.shape = tuple(results['inputs'].shape[-2:])

    def __call__(self, index: int) -> Results | None:
        """Load a sample; None if the pipeline leaves it out."""
        if not self.steps:
            return annotations_of(self.dataset[index])
        results: Results | None = self.dataset.get_data_info(index)
        for step in self.steps:
            if results is not None:
                results = step(results)
        return results


def annotations_of(item: Any) -> Results:
    """Return the annotations of a data set's item under the names that pipelines give them."""
    sample: Any = item.get('data_samples', ()) if isinstance(item, dict) else ()
    if 'gt_label' in sample:
        return {'gt_label': sample.gt_label}
    if 'gt_instances' in sample:
        return {'gt_bboxes_labels': sample.gt_instances.labels}
    if 'gt_sem_seg' in sample:
        return {'gt_seg_map': sample.gt_sem_seg.data.squeeze(0).numpy()}
    return {}


class Loaded(NamedTuple):
    """What was loaded: the number of samples, their labels added up, and some (file, pixels)."""

    samples: int
    unit: str
    numbers: Counter[int]
    ignored: int
    images: list[tuple[str, Any]]


def load_samples(
    load: Loader, indices: Sequence[int], report: DatasetReport, ignore_index: int | None
) -> Loaded:
    """Load samples in several threads, check and count what was loaded.

    Args:
        load: the loader.
        indices: of the samples.
        report: its problems are filled in.
        ignore_index: the label that the model's heads ignore; None if they differ in it.
    """
    classes = range(len(report.classes))
    images: list[tuple[str, Any]] = []

    def checked(index: int) -> tuple[Labels | None, str | None]:
        files: list[str] = []
        try:
            if hasattr(load.dataset, 'get_data_info'):
                files = files_of(load.dataset.get_data_info(index))
            results = load(index)
            fault = None if results is None else fault_of(results)
        except Exception as error:  # decoders and transforms raise exceptions of any type
            empty = [path for path in files if os.path.isfile(path) and not os.path.getsize(path)]
            if empty:
                return None, f'{empty[0]} (empty file)'
            return None, f'{" or ".join(files) or f"sample {index}"} ({first_line(error)})'
        files = files or [f'sample {index}']
        if results is None:
            return None, None
        labels = labels_of(results)
        if fault is None and labels is not None and labels.unit == PIXELS and classes:
            wrong = sorted(set(labels.numbers) - {*classes, ignore_index})
            if getattr(load.dataset, 'reduce_zero_label', False):
                wrong = [label + 1 for label in wrong]  # as in the file
            fault = f'label {listed(wrong)}' if wrong else None
        if 'img' in results and len(images) < FEW:
            images.append((files[0], results['img']))
        return labels, None if fault is None else f'{files[-1]} ({fault})'

    unit = ''
    numbers: Counter[int] = Counter()
    ignored = 0
    faults = []
    title = f'loading {report.splits[0]}'
    with ThreadPoolExecutor() as threads:
        results = threads.map(checked, indices)
        for labels, fault in tqdm(results, title, len(indices), leave=False, disable=None):
            if labels is not None:
                unit = labels.unit
                numbers.update(labels.numbers)
                ignored += labels.ignored
            if fault is not None:
                faults.append(fault)
    if unit == PIXELS and classes:
        for label in set(numbers) - {*classes}:
            ignored += numbers.pop(label)
    rule = f'{report.place}: samples that training cannot use'
    if unit == PIXELS:
        rule += label_rule(load.dataset, len(classes), ignore_index)
    add_line(report.problems, rule, faults)
    return Loaded(len(indices), unit, numbers, ignored, images)


def label_rule(dataset: Any, classes: int, ignore_index: int | None) -> str:
    """Say which labels the files of a data set of label maps may have, for a message."""
    first = int(bool(getattr(dataset, 'reduce_zero_label', False)))
    rule = (
        f', with labels {first} … {classes - 1 + first} for {classes} classes '
        f'(reduce_zero_label={bool(first)}) and {ignore_index} for no label '
        '(model.decode_head.ignore_index)'
    )
    if not first:
        rule += '; files that number the classes from 1 need reduce_zero_label=True'
    unread = getattr(dataset, 'ignore_index', ignore_index)
    if unread != ignore_index:
        rule += f'; nothing reads ignore_index={unread} of the data set: set that of the heads'
    return rule


def fault_of(results: Results) -> str | None:
    """Return why training cannot use a loaded sample, None if it can."""
    if not hasattr(results.get('img'), 'shape'):
        return None
    height, width = results['img'].shape[:2]
    stated = (results.get('width'), results.get('height'))
    if all(stated) and stated != (width, height):
        return f'{width} x {height} pixels, but annotated as {stated[0]} x {stated[1]}'
    labels = results.get('gt_seg_map')
    if labels is None:
        return None
    if labels.ndim != 2:
        return f'{labels.shape[2]} channels of colours; expected one channel with class numbers'
    if labels.shape != (height, width):
        return f'{labels.shape[1]} x {labels.shape[0]} pixels, but its image {width} x {height}'
    with contextlib.suppress(OSError), Image.open(results.get('seg_map_path') or '') as file:
        if file.mode.startswith('I') and np.asarray(file).max() > 255:  # mmseg takes 8 bits of it
            return 'labels above 255'
    return None
