"""What the samples of a data set hold once the steps of its pipeline have loaded them."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmpola.images import is_stored_turned
from mmpola.messages import first_line, listed
from mmpola.openmmlab.checks.read import (
    FEW,
    INSTANCES,
    PIXELS,
    Data,
    Fault,
    Labels,
    Results,
    added,
    files_of,
    labels_of,
    steps_of,
)
from mmpola.openmmlab.config.contents import head_ignore_index
from mmpola.openmmlab.predict.reader import FIRST_IMAGES

TRIES = 8
"""Samples that are looked at as the network reads them: random scales make their sizes differ."""


def load(data: Data, whole: bool) -> None:
    """Load samples of a data set: `FEW`, or all of them if these do not suffice or with `whole`."""
    every = range(data.images)
    few = random_samples(data.images, FEW)
    loader = Loader(data)
    loader.find_steps(few)
    if data.loaded.error is not None and not loader.steps:
        return
    loader.load(every if whole else few)
    if data.loaded.samples < data.images and is_inconclusive(data):
        loader.load(every)


def measure(data: Data) -> None:
    """Load a few samples of a data set that has been read, to know the size of its images."""
    Loader(data).find_steps(random_samples(data.images, TRIES))


def random_samples(images: int, number: int) -> list[int]:
    """Draw samples of a data set at random, the same ones each time; the first is among them.

    Every n-th sample would not do: images of two kinds may take turns.
    """
    others = range(1, images)
    return [0, *sorted(random.Random(0).sample(others, min(number - 1, len(others))))]


def is_inconclusive(data: Data) -> bool:
    """Whether a few samples show nothing to learn from, which all of them may have."""
    found = data.loaded.labels
    known = data.known.labels
    if found.unit == INSTANCES:
        return bool(known.total and found.ignored and not found.numbers)
    is_known = known.total > 0 or not found.unit
    return not is_known and len(data.classes) > 1 and len(found.numbers) < 2


class Loader:
    """Loads samples with the steps of a pipeline that bring the image and the annotations.

    A data set without a pipeline of steps loads its whole items.

    Args:
        data: the data set; the loader fills `data.loaded`.
    """

    def __init__(self, data: Data) -> None:
        self.data = data
        self.dataset = data.dataset
        self.loaded = data.loaded
        self.steps: list[Any] = []
        ignored = head_ignore_index(data.cfg.get('model'))
        self.allowed: set[int | None] = {*range(len(data.classes)), ignored}

    def find_steps(self, indices: Sequence[int]) -> None:
        """Find the steps that load, by running the whole pipeline on one of these samples.

        They are the ones after which there is an image or another `gt_…`.
        """
        for index in indices:
            try:
                self._run(index)
            except Exception as error:  # transforms of other packages raise exceptions of any type
                self.loaded.error = self.loaded.error or first_line(error)
            else:
                self.loaded.error = None
                break
        for number in random_samples(len(indices), TRIES)[1:]:
            with contextlib.suppress(Exception):  # `load` finds the file
                self._add_item(indices[number], self.dataset[indices[number]])

    def _run(self, index: int) -> None:
        """Run the whole pipeline on a sample."""
        steps = steps_of(self.dataset)
        if not steps:
            self._add_item(index, self.dataset[index])
            return
        found = []
        results: Any = self.dataset.get_data_info(index)
        for step in steps:
            known = set(results)
            results = step(results)
            if results is None:  # random steps may drop a sample
                break
            new = set(results) - known
            if 'img' in new or any(key.startswith('gt_') for key in new):
                found.append(step)
                self.steps = max(self.steps, found, key=len)
            if 'gt_seg_map' in new:
                reads = getattr(type(step), '_load_seg_map', None)
                module = getattr(reads, '__module__', '').split('.')[0]
                self.loaded.maps_are_bytes = module in ('mmcv', 'mmdet', 'mmseg')
        self._add_item(index, results)

    def _add_item(self, index: int, item: Any) -> None:
        if isinstance(item, dict) and hasattr(item.get('inputs'), 'shape'):
            self.loaded.items.append((index, item))

    def load(self, indices: Sequence[int]) -> None:
        """Load samples in several threads, and count what was loaded."""
        self.loaded.images.clear()
        self.loaded.turned.clear()
        title = f'loading {self.data.splits[0]}'
        with ThreadPoolExecutor() as threads:
            found = threads.map(self._load_one, indices)
            results = list(tqdm(found, title, len(indices), leave=False, disable=None))
        labels = added([one for one, _ in results])
        if labels.unit == PIXELS and self.data.classes:
            self.loaded.strange = sorted(set(labels.numbers) - self.allowed)
            classes = range(len(self.data.classes))
            numbers = Counter({label: labels.numbers[label] for label in classes})
            labels = Labels(PIXELS, +numbers, labels.total - numbers.total())
        self.loaded.samples = len(indices)
        self.loaded.labels = labels
        self.loaded.faults = [fault for _, fault in results if fault is not None]

    def _load_one(self, index: int) -> tuple[Labels | None, Fault | None]:
        """Load a sample; return its labels, and why training cannot use it."""
        files: list[str] = []
        try:
            if hasattr(self.dataset, 'get_data_info'):
                files = files_of(self.dataset.get_data_info(index))
            results = self._results(index)
            if results is None:  # the pipeline leaves it out
                return None, None
            labels = labels_of(results)
            fault = self._fault(results, labels)
        except Exception as error:  # decoders and transforms raise exceptions of any type
            empty = [path for path in files if os.path.isfile(path) and not os.path.getsize(path)]
            text = f'{" or ".join(files) or f"sample {index}"} ({first_line(error)})'
            if empty:
                text = f'{empty[0]} (empty file)'
            return None, Fault('samples-unreadable', text)
        files = files or [f'sample {index}']
        images = self.loaded.images
        if 'img' in results and len(images) < FEW:
            images.append((files[0], results['img']))
        elif hasattr(self.dataset, 'image'):
            if len(images) < FIRST_IMAGES:
                images.append((files[0], np.asarray(self.dataset.image(index))))
            if is_stored_turned(files[0]):
                self.loaded.turned.append(files[0])
        if fault is None:
            return labels, None
        return labels, Fault(fault.check, f'{files[-1]} ({fault.text})')

    def _results(self, index: int) -> Results | None:
        """Return what the steps make of a sample; None if they leave it out."""
        if not self.steps:
            return annotations_of(self.dataset[index])
        results: Results | None = self.dataset.get_data_info(index)
        for step in self.steps:
            if results is not None:
                results = step(results)
        return results

    def _fault(self, results: Results, labels: Labels | None) -> Fault | None:
        """Return why training cannot use a loaded sample, without its file; None if it can."""
        fault = fault_of(results, self.loaded.maps_are_bytes)
        if fault is not None or labels is None or labels.unit != PIXELS or not self.data.classes:
            return fault
        wrong = sorted(set(labels.numbers) - self.allowed)
        if getattr(self.dataset, 'reduce_zero_label', False):
            wrong = [label + 1 for label in wrong]  # as in the file
        return Fault('map-labels', f'label {listed(wrong)}') if wrong else None


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


def fault_of(results: Results, maps_are_bytes: bool) -> Fault | None:
    """Return what is wrong with the sizes and the kind of a loaded sample, without its file."""
    if not hasattr(results.get('img'), 'shape'):
        return None
    height, width = results['img'].shape[:2]
    stated = (results.get('width'), results.get('height'))
    if all(stated) and stated != (width, height):
        text = f'{width} x {height} pixels, annotated as {stated[0]} x {stated[1]}'
        return Fault('image-size', text)
    labels = results.get('gt_seg_map')
    if labels is None:
        return None
    if labels.ndim != 2:  # a step of somebody's own may load several labels a pixel
        return Fault('map-colours', f'{labels.shape[2]} channels') if maps_are_bytes else None
    if labels.shape != (height, width):
        own = f'{labels.shape[1]} x {labels.shape[0]}'
        return Fault('map-size', f'{own} pixels, but its image {width} x {height}')
    if maps_are_bytes:
        with contextlib.suppress(OSError), Image.open(results.get('seg_map_path') or '') as file:
            if file.mode.startswith('I') and np.asarray(file).max() > 255:
                return Fault('map-bits', 'labels above 255')
    return None
