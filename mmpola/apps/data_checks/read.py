"""What the data sets of a config hold: `read` opens them, `load` runs their pipelines.

Both only look, and count what training will learn from; `checks.py` says what of it is wrong.
"""

from __future__ import annotations

import contextlib
import io
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from numpy.typing import NDArray

from mmpola.config_contents import inner_datasets, type_name
from mmpola.engine.types import type_class

INSTANCES = 'instances'
PIXELS = 'pixels'
SAMPLES = 'samples'
"""Units of the labels: one per object, per pixel, or per image or sequence."""

FEW = 32
"""Samples that the quick check loads, evenly spread over the data set."""

Results = dict[str, Any]
"""What a data set and the steps of its pipeline know about a sample."""


class Labels(NamedTuple):
    """Labels: their unit, the number of each, and how many training ignores."""

    unit: str
    numbers: Counter[int]
    ignored: int = 0

    @property
    def total(self) -> int:
        """Number of labels that training does not ignore."""
        return sum(self.numbers.values())


NO_LABELS = Labels('', Counter())


class Instances(NamedTuple):
    """All objects of a data set, a row for each: arrays of the same length.

    Attributes:
        image: index of the sample.
        has_box: whether the data set knows a box.
        box: x1, y1, x2, y2 [N, 4].
        size: width and height of the image [N, 2]; inf if the data set does not know them.
        ignored: whether training ignores the object.
        lacks_mask: whether the pipeline loads masks, and the object has none.
        outline: x1, y1, x2, y2 of its polygons [N, 4], if the pipeline loads them; else 0.
    """

    image: NDArray[Any]
    has_box: NDArray[Any]
    box: NDArray[Any]
    size: NDArray[Any]
    ignored: NDArray[Any]
    lacks_mask: NDArray[Any]
    outline: NDArray[Any]


class Known(NamedTuple):
    """What a data set knows about its samples without loading them.

    Attributes:
        labels: of all samples.
        empty: number of samples without an object to learn from.
        names: the image of each sample.
        files: all images and label maps; none if they are not on this machine's disks.
        ids: what the data set calls its images.
        instances: all objects.
    """

    labels: Labels
    empty: int
    names: list[str]
    files: list[str]
    ids: set[Any]
    instances: Instances


class Fault(NamedTuple):
    """Why training cannot use a sample: the name of a check, and the file with the reason."""

    check: str
    text: str


class Loaded(NamedTuple):
    """What the steps of a pipeline have loaded.

    Attributes:
        samples: how many samples were loaded.
        labels: of these.
        strange: labels of pixels that are neither a class nor the one that heads ignore.
        faults: of these samples.
        images: some (file, pixels).
        error: why no sample came through the whole pipeline; None if one did.
        sizes: (height, width) of the network's input from some samples.
        scales: (height, width) to which their whole images were resized, before any crop.
        maps_are_bytes: whether the step that loads label maps is one of OpenMMLab's, which takes
            the lower 8 bits of the numbers in the file.
    """

    samples: int
    labels: Labels
    strange: list[int]
    faults: list[Fault]
    images: list[tuple[str, Any]]
    error: str | None
    sizes: list[tuple[int, int]]
    scales: list[tuple[float, float]]
    maps_are_bytes: bool


NOTHING_LOADED = Loaded(0, NO_LABELS, [], [], [], None, [], [], False)


class Dropped(NamedTuple):
    """An annotation that a data set leaves out without a word: the cause, and its id."""

    cause: str
    id: Any


@dataclass
class Seen:
    """What a data set has read, but forgets.

    Attributes:
        raw: the annotation file as mmdet's COCO API has read it, None of other data sets.
        listed: number of samples before `filter_cfg` and `indices`; -1 before they are known.
        annotations: number of all annotations of these samples.
        dropped: the annotations that are left out, though they are of one of the classes.
        others: number of objects of each other class.
        where: the first file, or annotation, with an object of each other class.
        file: the file that is read; '' of data sets without files for single images.
    """

    raw: Any = None
    listed: int = -1
    annotations: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    file: str = ''

    def add_other(self, name: str, where: str) -> None:
        """Count an object of a class that is none of the data set's."""
        self.others[name] += 1
        self.where.setdefault(name, where)


@dataclass(frozen=True)
class Data:
    """A data set of a config.

    Attributes:
        cfg: the config.
        config: the part of it that describes the data set.
        splits: all splits that use it.
        dataset: the data set; None if it could not be built.
        paths: its files and folders.
        absent: those that do not exist.
        error: what it raised when it was built or read.
        seen: what it has read, but forgets.
        images: number of samples that are left to learn from.
        known: None if it was not opened, or has no samples that it could describe.
        loaded: what its pipeline has loaded; nothing before `load`.
    """

    cfg: Config
    config: dict[str, Any]
    splits: tuple[str, ...]
    dataset: Any = None
    paths: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    error: Exception | None = None
    seen: Seen = field(default_factory=Seen)
    images: int = 0
    is_read: bool = False
    known: Known | None = None
    loaded: Loaded = NOTHING_LOADED

    @property
    def kind(self) -> str:
        """Name of its class."""
        return type_name(self.config.get('type'))

    @property
    def loader(self) -> str:
        """Config key of its (first) data loader."""
        return f'{self.splits[0]}_dataloader'

    @property
    def place(self) -> str:
        """Its annotation file or first folder, for messages."""
        return str(self.paths[0]) if self.paths else f'{self.loader}.dataset'

    @property
    def raw(self) -> Any:
        """The annotation file as mmdet's COCO API has read it, None of other data sets."""
        return self.seen.raw

    @property
    def listed(self) -> int:
        """Number of samples before `filter_cfg` and `indices`."""
        return max(self.seen.listed, self.images)

    @property
    def is_trained(self) -> bool:
        """Whether training learns from it."""
        return 'train' in self.splits

    @property
    def classes(self) -> Sequence[str]:
        """Names in the order of their labels; empty if unknown."""
        names = self._metainfo.get('classes') or ()
        return () if isinstance(names, str) else tuple(names)

    @property
    def labelled(self) -> Sequence[str]:
        """The classes that labels may have: in panoptic data only the things, which come first."""
        return self.classes[: self.things or None]

    @property
    def things(self) -> int:
        """Number of classes that a panoptic data set counts in instances."""
        return len(self._metainfo.get('thing_classes') or ())

    @property
    def instances(self) -> Instances:
        """All objects; none if the data set was not opened."""
        return self.known.instances if self.known is not None else instances_of(array('d'))

    @property
    def names(self) -> Sequence[str]:
        """The image of each sample."""
        return self.known.names if self.known is not None else ()

    @property
    def ids(self) -> set[Any]:
        """What the data set calls its images."""
        return self.known.ids if self.known is not None else set()

    @property
    def labels(self) -> Labels:
        """What was loaded if that is all there is, or else what the data set itself knows.

        A data set of label maps knows none: then they are those of the samples that were loaded.
        """
        known = self.known.labels if self.known is not None else NO_LABELS
        if not self.loaded.labels.unit:
            return known
        is_complete = self.loaded.samples == self.images
        return self.loaded.labels if is_complete or not known.total else known

    @property
    def counted(self) -> int:
        """Number of samples in which `labels` were counted."""
        if self.loaded.samples and self.labels is self.loaded.labels:
            return self.loaded.samples
        return self.images

    @property
    def _metainfo(self) -> dict[str, Any]:
        return getattr(self.dataset, 'metainfo', None) or {}


def different_datasets(cfg: Config, splits: tuple[str, ...]) -> list[Data]:
    """List the data sets of `splits`, not read yet; those with equal files are one."""
    found: dict[str, Data] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        if not loader:
            continue
        for config in inner_datasets(loader.dataset):
            others = [(key, value) for key, value in config.items() if key != 'pipeline']
            key = str(sorted(others))
            data = found.setdefault(key, Data(cfg, config, ()))
            if split not in data.splits:
                found[key] = replace(data, splits=(*data.splits, split))
    return list(found.values())


def read(data: Data, is_first: bool) -> Data:
    """Build and read a data set.

    Args:
        data: one of `different_datasets`.
        is_first: whether this process opens files; the others only look whether they exist.
    """
    root = data.config.get('root')  # of class folders and sequences
    if root and not Path(root).expanduser().exists():
        return replace(data, absent=(Path(root),))
    try:
        dataset = build(data.config)
    except Exception as error:  # data sets raise exceptions of any type
        return replace(data, error=error)
    paths = paths_of(dataset)
    is_local = getattr(dataset, 'backend_args', None) is None
    absent = [path for path in paths if is_local and not path.exists()]
    data = replace(data, dataset=dataset, paths=tuple(paths), absent=tuple(absent))
    if absent or not is_first:
        return data
    with contextlib.redirect_stdout(io.StringIO()), watched(dataset) as seen:  # pycocotools prints
        try:
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
            images = len(dataset)
        except Exception as error:  # data sets raise exceptions of any type
            is_empty = seen.listed == 0 or (seen.listed > 0 and not dataset.data_list)
            if not isinstance(error, ValueError) or not is_empty:
                return replace(data, error=error, seen=seen)
            images = 0  # MMEngine cannot store an empty list
    data = replace(data, seen=seen, images=images)
    try:
        return replace(data, is_read=True, known=known_of(dataset, images))
    except Exception as error:  # of fields that have other types than the data set expects
        return replace(data, error=error)


def build(config: dict[str, Any]) -> Any:
    """Build a data set; OpenMMLab's without reading its annotations yet."""
    kind = type_class(config.get('type'), DATASETS)
    arguments = dict(config)
    if isinstance(kind, type) and issubclass(kind, BaseDataset):
        arguments['lazy_init'] = True
    return DATASETS.build(arguments)


def paths_of(dataset: Any) -> list[Path]:
    """List the annotation file and the folders of a built data set."""
    folders = getattr(dataset, 'data_prefix', None) or {'': getattr(dataset, 'root', '')}
    names = [getattr(dataset, 'ann_file', ''), *folders.values()]
    return [Path(name) for name in dict.fromkeys(names) if name]


@contextlib.contextmanager
def watched(dataset: Any) -> Iterator[Seen]:
    """Note what a data set reads."""
    seen = Seen()
    if hasattr(dataset, 'filter_data'):
        keep = dataset.filter_data

        def note_and_keep() -> Any:
            seen.listed = len(dataset.data_list)
            return keep()

        dataset.filter_data = note_and_keep
    open_file = getattr(type(dataset), 'COCOAPI', None)
    if open_file is not None:

        def open_and_note(path: str) -> Any:
            seen.raw = open_file(path)
            return seen.raw

        dataset.COCOAPI = open_and_note
    if hasattr(dataset, 'parse_data_info'):
        parse = dataset.parse_data_info

        def parse_and_note(raw: Any) -> Any:
            seen.file = raw.get('xml_path', '') if isinstance(raw, dict) else ''
            info = parse(raw)
            note_dropped(seen, dataset, raw, info, parse)
            return info

        dataset.parse_data_info = parse_and_note
    if hasattr(dataset, '_parse_instance_info'):  # of Pascal VOC's format
        parse_objects = dataset._parse_instance_info

        def parse_objects_and_note(tree: Any, *arguments: Any, **options: Any) -> Any:
            for name in [thing.findtext('name') for thing in tree.findall('object')]:
                seen.annotations += 1
                if name not in dataset.metainfo['classes']:
                    seen.add_other(str(name), seen.file)
            return parse_objects(tree, *arguments, **options)

        dataset._parse_instance_info = parse_objects_and_note
    yield seen
    for name in ('filter_data', 'COCOAPI', 'parse_data_info', '_parse_instance_info'):
        vars(dataset).pop(name, None)


def note_dropped(
    seen: Seen, dataset: Any, raw: Any, info: Any, parse: Callable[[Any], Any]
) -> None:
    """Note the annotations of an image that a data set has left out, by asking it for each."""
    annotations = raw.get('raw_ann_info') if isinstance(raw, dict) else None
    is_plain = isinstance(info, dict) and 'instances' in info and 'segments_info' not in info
    if not isinstance(annotations, list) or not is_plain:
        return
    seen.annotations += len(annotations)
    if len(info['instances']) == len(annotations):
        return
    categories = getattr(seen.raw, 'cats', {})
    for annotation in annotations:
        if parse({**raw, 'raw_ann_info': [annotation]})['instances']:
            continue
        category = annotation.get('category_id')
        if category in categories and category not in dataset.cat_ids:
            seen.add_other(categories[category]['name'], f'id {annotation.get("id")}')
        else:
            cause = cause_of(annotation, raw['raw_img_info'], category in dataset.cat_ids)
            seen.dropped.append(Dropped(cause, annotation.get('id')))


def cause_of(annotation: dict[str, Any], image: dict[str, Any], has_class: bool) -> str:
    """Return why mmdet leaves out an annotation in COCO layout."""
    if not has_class:
        return 'no such category'
    left, top, width, height = annotation['bbox']
    if not math.isfinite(left + top + width + height):
        return 'box not finite'
    if annotation.get('ignore'):
        return 'ignore'
    if max(left, top, width, height) <= 1:
        return 'box between 0 and 1, but not in pixels'
    if width < 1 or height < 1:
        return 'box narrower than a pixel'
    if min(left + width, image['width']) <= max(left, 0):
        return 'box outside'
    if min(top + height, image['height']) <= max(top, 0):
        return 'box outside'
    return 'area 0'


def known_of(dataset: Any, images: int) -> Known | None:
    """Collect what `get_data_info` tells about each sample."""
    if images == 0 or not hasattr(dataset, 'get_data_info'):
        return None
    with_mask = loads_masks(dataset)
    is_local = getattr(dataset, 'backend_args', None) is None and hasattr(dataset, 'data_prefix')
    labels = []
    names = []
    files: list[str] = []
    ids = set()
    rows = array('d')  # COCO has a million objects
    for index in range(images):
        info = dataset.get_data_info(index)
        labels.append(labels_of(info))
        names.append(info.get('img_path'))
        ids.add(info.get('img_id'))
        if is_local:
            files += files_of(info)
        size = (info.get('width') or math.inf, info.get('height') or math.inf)
        reads_masks = with_mask and 'segments_info' not in info  # panoptic masks are in a file
        for instance in info.get('instances', ()):
            box = instance.get('bbox', ())
            has_box = len(box) == 4
            box = box if has_box else (0, 0, 0, 0)
            is_ignored = bool(instance.get('ignore_flag'))
            mask = ()
            lacks_mask = False
            if reads_masks and not is_ignored:
                mask = instance.get('mask') or ()
                lacks_mask = len(mask) == 0
            rows.extend((index, has_box, *box, *size, is_ignored, lacks_mask, *outline_of(mask)))
    empty = sum(one is not None and one.total == 0 for one in labels)
    return Known(added(labels), empty, names, files, ids, instances_of(rows))


def instances_of(rows: array[float]) -> Instances:
    """Return the columns of a table that is stored row by row."""
    columns = np.array(rows).reshape(-1, 14).T
    return Instances(
        image=columns[0].astype(int),
        has_box=columns[1] > 0,
        box=columns[2:6].T,
        size=columns[6:8].T,
        ignored=columns[8] > 0,
        lacks_mask=columns[9] > 0,
        outline=columns[10:].T,
    )


def outline_of(mask: Any) -> tuple[float, float, float, float]:
    """Return x1, y1, x2, y2 of the polygons of a mask; zeros of run lengths and of other types."""
    numbers = []
    if isinstance(mask, list):
        numbers = [polygon for polygon in mask if isinstance(polygon, list) and polygon]
    if not numbers:
        return (0, 0, 0, 0)
    xs = [x for polygon in numbers for x in polygon[0::2]]
    ys = [y for polygon in numbers for y in polygon[1::2]] or [0]
    if not math.isfinite(sum(xs) + sum(ys)):
        return (math.nan,) * 4
    return (min(xs), min(ys), max(xs), max(ys))


def added(labels: Sequence[Labels | None]) -> Labels:
    """Return the labels of several samples together."""
    unit = ''
    numbers: Counter[int] = Counter()
    ignored = 0
    for one in labels:
        if one is not None:
            unit = one.unit
            numbers.update(one.numbers)
            ignored += one.ignored
    return Labels(unit, numbers, ignored)


def labels_of(results: Results) -> Labels | None:
    """Return the labels in what a pipeline has loaded, or else in what the data set itself knows.

    Pixels that are ignored are among `numbers`: only the model's heads know which labels are. Label
    maps with several labels a pixel are not counted.
    """
    if 'gt_bboxes_labels' in results:
        labels = np.asarray(results['gt_bboxes_labels'])
        flags = np.asarray(results.get('gt_ignore_flags', np.zeros(len(labels))), bool)
        return Labels(INSTANCES, Counter(labels[~flags].tolist()), int(flags.sum()))
    if 'gt_seg_map' in results:
        if results['gt_seg_map'].ndim != 2:
            return None
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


def loads_masks(dataset: Any) -> bool:
    """Whether the pipeline of a data set loads the masks of objects."""
    return any(getattr(step, 'with_mask', False) for step in steps_of(dataset))


def steps_of(dataset: Any) -> list[Any]:
    """List the steps of a data set's pipeline; of test-time augmentation, those of one variant."""
    steps: list[Any] = []
    for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ()):
        variants = getattr(step, 'subroutines', None)
        steps += variants[0].transforms if variants else [step]
    return steps
