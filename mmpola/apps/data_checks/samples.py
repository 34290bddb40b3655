"""What the samples of a data set hold once the steps of its pipeline have loaded them."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmpola.apps.data_checks.read import (
    FEW,
    INSTANCES,
    NOTHING_LOADED,
    PIXELS,
    Data,
    Fault,
    Labels,
    Loaded,
    Results,
    added,
    files_of,
    labels_of,
    steps_of,
)
from mmpola.apps.image_reader import FIRST_IMAGES
from mmpola.config_contents import head_ignore_index
from mmpola.messages import first_line, listed

TRIES = 8
"""Samples whose size is looked at as the network reads it: random scales make them differ."""


def load(data: Data, whole: bool) -> Data:
    """Load samples of a data set: `FEW`, or all of them if these do not suffice or with `whole`."""
    every = range(data.images)
    few = every[:: math.ceil(data.images / FEW)]
    loader = Loader(data.dataset, few)
    if loader.error is not None and not loader.steps:
        return replace(data, loaded=NOTHING_LOADED._replace(error=loader.error))
    loaded = load_samples(loader, every if whole else few, data)
    if loaded.samples < data.images and is_inconclusive(loaded, data):
        loaded = load_samples(loader, every, data)
    return replace(data, loaded=loaded)


def is_inconclusive(loaded: Loaded, data: Data) -> bool:
    """Whether a few samples show nothing to learn from, which all of them may have."""
    if loaded.labels.unit == INSTANCES:
        return bool(data.labels.total and loaded.labels.ignored and not loaded.labels.numbers)
    is_known = data.labels.total > 0 or not loaded.labels.unit
    return not is_known and len(data.classes) > 1 and len(loaded.labels.numbers) < 2


class Loader:
    """Loads samples with the steps of a pipeline that bring the image and the annotations.

    These are found by running the whole pipeline: they are the ones after which there is an image
    or another `gt_…`. A data set without a pipeline of steps loads its whole items.

    Args:
        dataset: the data set.
        indices: of the samples that may be tried until one can be loaded.

    Attributes:
        error: why none of these samples came through the pipeline, None if one did.
        sizes: (height, width) of the network's input from the first samples.
        scales: (height, width) to which the whole images were resized.
        maps_are_bytes: see `Loaded`.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.steps: list[Any] = []
        self.error: str | None = None
        self.sizes: list[tuple[int, int]] = []
        self.scales: list[tuple[float, float]] = []
        self.maps_are_bytes = False
        for index in indices:
            try:
                self._run(index)
            except Exception as error:  # transforms of other packages raise exceptions of any type
                self.error = self.error or first_line(error)
            else:
                self.error = None
                break
        for index in indices[1:TRIES]:
            with contextlib.suppress(Exception):  # `load_samples` finds the file
                self._add_size(dataset[index])

    def _run(self, index: int) -> None:
        """Run the whole pipeline on a sample."""
        steps = steps_of(self.dataset)
        if not steps:
            self._add_size(self.dataset[index])
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
                self.maps_are_bytes = module in ('mmcv', 'mmdet', 'mmseg')
        self._add_size(results)

    def _add_size(self, item: Any) -> None:
        inputs: Any = item.get('inputs') if isinstance(item, dict) else None
        if hasattr(inputs, 'shape') and len(inputs.shape) == 3:
            height, width = inputs.shape[-2:]
            self.sizes.append((int(height), int(width)))
        known = getattr(item.get('data_samples'), 'metainfo', {}) if isinstance(item, dict) else {}
        if 'ori_shape' in known:
            height, width = known['ori_shape'][:2]
            across, down = known.get('scale_factor', (1, 1))[:2]
            self.scales.append((height * down, width * across))

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


def load_samples(loader: Loader, indices: Sequence[int], data: Data) -> Loaded:
    """Load samples in several threads, and count what was loaded.

    Args:
        loader: the loader.
        indices: of the samples.
        data: its classes are the labels that pixels may have, besides the one that heads ignore.
    """
    allowed: set[int | None] = {*range(len(data.classes))}
    allowed.add(head_ignore_index(data.cfg.get('model')))
    images: list[tuple[str, Any]] = []

    def loaded(index: int) -> tuple[Labels | None, Fault | None]:
        files: list[str] = []
        try:
            if hasattr(loader.dataset, 'get_data_info'):
                files = files_of(loader.dataset.get_data_info(index))
            results = loader(index)
            if results is None:
                return None, None
            fault = fault_of(results, loader.maps_are_bytes)
        except Exception as error:  # decoders and transforms raise exceptions of any type
            empty = [path for path in files if os.path.isfile(path) and not os.path.getsize(path)]
            text = f'{" or ".join(files) or f"sample {index}"} ({first_line(error)})'
            if empty:
                text = f'{empty[0]} (empty file)'
            return None, Fault('samples-unreadable', text)
        labels = labels_of(results)
        if fault is None and labels is not None and labels.unit == PIXELS and data.classes:
            wrong = sorted(set(labels.numbers) - allowed)
            if getattr(loader.dataset, 'reduce_zero_label', False):
                wrong = [label + 1 for label in wrong]  # as in the file
            if wrong:
                fault = ('map-labels', f'label {listed(wrong)}')
        files = files or [f'sample {index}']
        if 'img' in results and len(images) < FEW:
            images.append((files[0], results['img']))
        elif hasattr(loader.dataset, 'image') and len(images) < FIRST_IMAGES:
            images.append((files[0], np.asarray(loader.dataset.image(index))))
        if fault is None:
            return labels, None
        check, reason = fault
        return labels, Fault(check, f'{files[-1]} ({reason})')

    title = f'loading {data.splits[0]}'
    with ThreadPoolExecutor() as threads:
        found = threads.map(loaded, indices)
        results = list(tqdm(found, title, len(indices), leave=False, disable=None))
    labels = added([one for one, _ in results])
    strange = []
    if labels.unit == PIXELS and data.classes:
        strange = sorted(set(labels.numbers) - allowed)
        numbers = Counter({key: labels.numbers[key] for key in range(len(data.classes))})
        ignored = labels.total - numbers.total()
        labels = Labels(PIXELS, +numbers, ignored)
    return Loaded(
        samples=len(indices),
        labels=labels,
        strange=strange,
        faults=[fault for _, fault in results if fault is not None],
        images=images,
        error=loader.error,
        sizes=loader.sizes,
        scales=loader.scales,
        maps_are_bytes=loader.maps_are_bytes,
    )


def fault_of(results: Results, maps_are_bytes: bool) -> tuple[str, str] | None:
    """Return (check, reason) why training cannot use a loaded sample, None if it can."""
    if not hasattr(results.get('img'), 'shape'):
        return None
    height, width = results['img'].shape[:2]
    stated = (results.get('width'), results.get('height'))
    if all(stated) and stated != (width, height):
        return 'image-size', f'{width} x {height} pixels, annotated as {stated[0]} x {stated[1]}'
    labels = results.get('gt_seg_map')
    if labels is None:
        return None
    if labels.ndim != 2:  # a step of somebody's own may load several labels a pixel
        return ('map-colours', f'{labels.shape[2]} channels') if maps_are_bytes else None
    if labels.shape != (height, width):
        own = f'{labels.shape[1]} x {labels.shape[0]}'
        return 'map-size', f'{own} pixels, but its image {width} x {height}'
    if maps_are_bytes:
        with contextlib.suppress(OSError), Image.open(results.get('seg_map_path') or '') as file:
            if file.mode.startswith('I') and np.asarray(file).max() > 255:
                return 'map-bits', 'labels above 255'
    return None
