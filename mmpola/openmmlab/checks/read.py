"""What the data sets of a config hold: `read` opens them, and only looks.

The checks say what of it is wrong; `samples.py` runs the pipelines.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmpola.openmmlab.config.contents import inner_datasets, type_name
from mmpola.openmmlab.config.types import type_class

INSTANCES = 'instances'
PIXELS = 'pixels'
SAMPLES = 'samples'
"""Units of the labels: one per object, per pixel, or per image or sequence."""

FARTHEST = 10
"""Coordinates of polygons may be this many times the longer side of their image.

pycocotools stores an outline in steps of a fifth of a pixel: 1e9 would take all memory.
"""

FEW = 32
"""Samples that the quick check loads, drawn at random from the data set."""

Results = dict[str, Any]
"""What a data set and the steps of its pipeline know about a sample."""

OBJECT = np.dtype(
    [
        ('image', int),  # index of the sample
        ('label', int),  # -1 if the data set does not know it
        ('has_box', bool),  # whether the data set knows a box
        ('box', float, 4),  # x1, y1, x2, y2
        ('image_size', float, 2),  # width and height of its image; inf if they are not known
        ('ignored', bool),  # whether training ignores the object
        ('outline', float, 4),  # x1, y1, x2, y2 of its polygons, if the pipeline loads them; else 0
    ]
)


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


class Fault(NamedTuple):
    """Why training cannot use a sample: the name of a check, and the file with the reason."""

    check: str
    text: str


class KnownSamples(NamedTuple):
    """What a data set knows about its samples without loading them.

    Attributes:
        labels: of all samples.
        empty: number of samples without an object to learn from.
        names: the image of each sample.
        files: all images and label maps; none if they are not on this machine's disks.
        ids: what the data set calls its images.
        objects: an `OBJECT` for each, as a record array.
        faults: of the masks of objects, if the pipeline loads them.
    """

    labels: Labels = NO_LABELS
    empty: int = 0
    names: Sequence[str] = ()
    files: Sequence[str] = ()
    ids: frozenset[Any] = frozenset()
    objects: Any = np.empty(0, OBJECT).view(np.recarray)
    faults: Sequence[Fault] = ()


@dataclass
class LoadedSamples:
    """What the steps of a pipeline have loaded.

    Attributes:
        samples: how many samples were loaded.
        labels: of these.
        strange: labels of pixels that are neither a class nor the one that heads ignore.
        faults: of these samples.
        images: some (file, pixels).
        turned: files of class folders whose EXIF rotation is ignored.
        error: why no sample came through the whole pipeline; None if one did.
        items: (index, sample as the whole pipeline hands it on) of some samples.
        maps_are_bytes: whether the step that loads label maps is one of OpenMMLab's, which takes
            the lower 8 bits of the numbers in the file.
    """

    samples: int = 0
    labels: Labels = NO_LABELS
    strange: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    images: list[tuple[str, Any]] = field(default_factory=list)
    turned: list[str] = field(default_factory=list)
    error: str | None = None
    items: list[tuple[int, Results]] = field(default_factory=list)
    maps_are_bytes: bool = False

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(height, width) of the network's input from `items`."""
        shapes = [item['inputs'].shape for _, item in self.items]
        return [(int(shape[1]), int(shape[2])) for shape in shapes if len(shape) == 3]

    @property
    def scales(self) -> list[tuple[float, float]]:
        """(height, width) to which the whole images of `items` were resized, before any crop."""
        scales = []
        for _, item in self.items:
            known = getattr(item.get('data_samples'), 'metainfo', {})
            if 'ori_shape' in known:
                height, width = known['ori_shape'][:2]
                across, down = scale_factor(item)
                scales.append((height * down, width * across))
        return scales


@dataclass
class Data:
    """A data set of a config; `read` and `load` fill it.

    Attributes:
        cfg: the config.
        config: the part of it that describes the data set.
        splits: all splits that use it.
        dataset: the data set; None if it could not be built.
        keys: the key of the data set that names each of its files and folders.
        absent: files and folders that do not exist.
        error: what it raised when it was built or read.
        raw: the annotation file as mmdet's COCO API has read it, None of other data sets.
        truths: what `truth_of` has found for the files of evaluators.
        unfiltered: number of samples before `filter_cfg` and `indices`; -1 before they are known.
        annotations: number of all annotations of these samples.
        dropped: number of annotations of each image file that the data set leaves out without a
            word, though they are of no other class.
        others: number of objects of each other class.
        where: the first file, or annotation, with an object of each other class.
        file: the single image's file that is being read; else ''.
        faults: of these files.
        images: number of samples that are left to learn from.
        is_read: whether `images` and `known` are right.
        known: what it knows about its samples; nothing if it could not describe any.
        loaded: what its pipeline has loaded; nothing before `load`.
    """

    cfg: Config
    config: dict[str, Any]
    splits: list[str]
    dataset: Any = None
    keys: dict[Path, str] = field(default_factory=dict)
    absent: Sequence[Path] = ()
    error: Exception | None = None
    raw: Any = None
    truths: dict[Any, Any] = field(default_factory=dict)
    unfiltered: int = -1
    annotations: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    file: str = ''
    faults: list[Fault] = field(default_factory=list)
    images: int = 0
    is_read: bool = False
    known: KnownSamples = field(default_factory=KnownSamples)
    loaded: LoadedSamples = field(default_factory=LoadedSamples)

    @property
    def kind(self) -> str:
        """Name of its class."""
        return type_name(self.config.get('type'))

    @property
    def loader(self) -> str:
        """Config key of its (first) data loader."""
        return f'{self.splits[0]}_dataloader'

    @property
    def paths(self) -> list[Path]:
        """Its annotation file, if it has one, and its folders."""
        return list(self.keys)

    @property
    def place(self) -> str:
        """Its annotation file or first folder, for messages."""
        return str(self.paths[0]) if self.paths else f'{self.loader}.dataset'

    @property
    def images_before_filters(self) -> int:
        """Number of samples before `filter_cfg` and `indices`."""
        return max(self.unfiltered, self.images)

    @property
    def is_trained(self) -> bool:
        """Whether training learns from it."""
        return 'train' in self.splits

    @property
    def metainfo(self) -> dict[str, Any]:
        """What it knows about itself, such as its classes."""
        return getattr(self.dataset, 'metainfo', None) or {}

    @property
    def classes(self) -> Sequence[str]:
        """Names in the order of their labels; empty if unknown."""
        names = self.metainfo.get('classes') or ()
        return () if isinstance(names, str) else tuple(names)

    @property
    def labelled(self) -> Sequence[str]:
        """The classes that labels may have: in panoptic data only the things, which come first."""
        return self.classes[: self.things or None]

    @property
    def things(self) -> int:
        """Number of classes that a panoptic data set counts in instances."""
        return len(self.metainfo.get('thing_classes') or ())

    @property
    def labels(self) -> Labels:
        """What was loaded if that is all there is, or else what the data set itself knows.

        A data set of label maps knows none: then labels of the loaded samples are returned.
        """
        if not self.loaded.labels.unit:
            return self.known.labels
        is_complete = self.loaded.samples == self.images
        if is_complete or not self.known.labels.total:
            return self.loaded.labels
        return self.known.labels

    @property
    def images_counted(self) -> int:
        """Number of samples in which `labels` were counted."""
        if self.loaded.samples and self.labels is self.loaded.labels:
            return self.loaded.samples
        return self.images

    def add_other(self, name: Any, where: str) -> None:
        """Count an object of a class that is none of the data set's; its name may be no text."""
        self.others[str(name)] += 1
        self.where.setdefault(str(name), where)


def different_datasets(cfg: Config, splits: tuple[str, ...]) -> list[Data]:
    """List the data sets of `splits`, not read yet; those with equal files are one."""
    found: dict[str, Data] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for config in inner_datasets(loader.dataset) if loader else ():
            others = [(key, value) for key, value in config.items() if key != 'pipeline']
            data = found.setdefault(str(sorted(others)), Data(cfg, config, []))
            if split not in data.splits:
                data.splits.append(split)
    return list(found.values())


def read_dataset(data: Data, is_first: bool) -> None:
    """Build and read a data set.

    Args:
        data: one of `different_datasets`.
        is_first: whether this process opens files; the others only look whether they exist.
    """
    root = data.config.get('root')  # of class folders and sequences
    if root and not Path(root).expanduser().exists():
        data.absent = [Path(root)]
        return
    try:
        dataset = build(data)
    except Exception as error:  # data sets raise exceptions of any type
        data.error = error
        return
    data.dataset = dataset
    data.keys = keyed_paths(dataset)
    if getattr(dataset, 'backend_args', None) is None:  # the files are on this machine
        data.absent = [path for path in data.paths if not path.exists()]
    if data.absent or not is_first:
        return
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
            data.images = number_of_samples(data)
        data.known = known_of(dataset, data.images)
        data.is_read = True
    except Exception as error:  # of fields that have other types than the data set expects
        data.error = error


def build(data: Data) -> Any:
    """Build a data set; OpenMMLab's without reading its annotations yet, and watched."""
    kind = type_class(data.config.get('type'), DATASETS)
    arguments = dict(data.config)
    if isinstance(kind, type) and issubclass(kind, BaseDataset):
        arguments['lazy_init'] = True
        names = {'noted': data, '__module__': kind.__module__}
        arguments['type'] = type(kind.__name__, (RecordingDataset, kind), names)
    return DATASETS.build(arguments)


def keyed_paths(dataset: Any) -> dict[Path, str]:
    """Return the annotation file and the folders of a built data set, each with its key."""
    named = {'ann_file': getattr(dataset, 'ann_file', '')}
    folders = getattr(dataset, 'data_prefix', None) or {}
    for name, folder in folders.items():
        named[f'data_prefix.{name}'] = folder
    if not folders:
        named['root'] = getattr(dataset, 'root', '')
    paths: dict[Path, str] = {}
    for key, path in named.items():
        if path:
            paths.setdefault(Path(path), key)
    return paths


def number_of_samples(data: Data) -> int:
    """Let a data set read its files; return the number of its samples."""
    try:
        if hasattr(data.dataset, 'full_init'):
            data.dataset.full_init()
        return len(data.dataset)
    except ValueError:
        if data.unfiltered < 0 or (data.unfiltered > 0 and data.dataset.data_list):
            raise
        return 0  # MMEngine cannot store an empty list


class RecordingDataset(BaseDataset):
    """Goes before the class of a data set, and notes what that reads but forgets."""

    noted: Data

    def COCOAPI(self, path: str) -> Any:  # noqa: N802
        """Open a file in COCO layout, as `CocoDataset` does."""
        self.noted.raw = super().COCOAPI(path)
        return self.noted.raw

    def filter_data(self) -> Any:
        """Apply `filter_cfg`."""
        self.noted.unfiltered = len(self.data_list)
        return super().filter_data()

    def parse_data_info(self, raw: Any) -> Any:
        """Make what the data set knows of a sample from an entry of its file."""
        self.noted.file = raw.get('xml_path', '') if isinstance(raw, dict) else ''
        info = super().parse_data_info(raw)
        note_dropped(self, raw, info)
        self.noted.file = ''
        return info

    def _parse_instance_info(self, tree: Any, *arguments: Any, **options: Any) -> Any:
        """List the objects of a file in Pascal VOC's format, as `XMLDataset` does."""
        for name in [thing.findtext('name') for thing in tree.findall('object')]:
            self.noted.annotations += 1
            if name not in self.metainfo['classes']:
                self.noted.add_other(name, self.noted.file)
        own = len(tree.findall('object'))
        every = sum(element.tag.rpartition('}')[2] == 'object' for element in tree.iter())
        if own < every or tree.getroot().tag == 'html':
            self.noted.faults.append(Fault('xml-objects', self.noted.file))
        return super()._parse_instance_info(tree, *arguments, **options)


def note_dropped(dataset: RecordingDataset, raw: Any, info: Any) -> None:
    """Count the annotations of an image that a data set has left out."""
    annotations = raw.get('raw_ann_info') if isinstance(raw, dict) else None
    is_plain = isinstance(info, dict) and 'instances' in info and 'segments_info' not in info
    if not isinstance(annotations, list) or not is_plain:
        return
    data = dataset.noted
    data.annotations += len(annotations)
    dropped = len(annotations) - len(info['instances'])
    categories = getattr(data.raw, 'cats', {})
    for annotation in annotations if dropped else ():
        category = annotation.get('category_id')
        if category in categories and category not in dataset.cat_ids:
            data.add_other(categories[category]['name'], f'id {annotation.get("id")}')
            dropped -= 1
    if dropped > 0:
        data.dropped[str(raw['raw_img_info'].get('file_name'))] += dropped


def known_of(dataset: Any, images: int) -> KnownSamples:
    """Collect what `get_data_info` tells about each sample."""
    if images == 0 or not hasattr(dataset, 'get_data_info'):
        return KnownSamples()
    with_mask = loads_masks(dataset)
    is_local = getattr(dataset, 'backend_args', None) is None and hasattr(dataset, 'data_prefix')
    infos = map(dataset.get_data_info, range(images))
    labels = []
    names = []
    files = []
    ids = set()
    objects = [KnownSamples().objects]
    faults = []
    for index, info in enumerate(infos):
        labels.append(labels_of(info))
        names.append(info.get('img_path'))
        ids.add(info.get('img_id'))
        files += files_of(info) if is_local else []
        size = (info.get('width') or math.inf, info.get('height') or math.inf)
        reads_masks = with_mask and 'segments_info' not in info  # panoptic masks are in a file
        rows = []
        for instance in info.get('instances', ()):
            mask = None
            if reads_masks and not instance.get('ignore_flag'):
                mask = instance.get('mask') or ()
            outline = outline_of(mask)
            rows.append(object_of(instance, index, size, outline))
            fault = mask_fault(mask, outline, size)
            if fault is not None:
                faults.append(Fault(fault, str(info.get('img_path'))))
        objects.append(np.array(rows, OBJECT))  # compact, as COCO has a million objects
    empty = sum(one is not None and one.total == 0 for one in labels)
    table = np.concatenate(objects).view(np.recarray)
    return KnownSamples(added(labels), empty, names, files, frozenset(ids), table, faults)


def object_of(instance: Results, index: int, size: Any, outline: Any) -> tuple[Any, ...]:
    """Return an `OBJECT` of an instance in what a data set knows about a sample."""
    box = tuple(instance.get('bbox', ()))
    has_box = len(box) == 4
    place = box if has_box else (0,) * 4
    label = instance.get('bbox_label', -1)
    is_ignored = bool(instance.get('ignore_flag'))
    return (index, label, has_box, place, size, is_ignored, outline)


def outline_of(mask: Any) -> tuple[float, float, float, float]:
    """Return x1, y1, x2, y2 of the polygons of a mask; zeros of run lengths and of other types."""
    polygons = []
    if isinstance(mask, list):
        polygons = [polygon for polygon in mask if isinstance(polygon, list) and polygon]
    xs = [x for polygon in polygons for x in polygon[0::2]] or [0]
    ys = [y for polygon in polygons for y in polygon[1::2]] or [0]
    try:
        is_finite = math.isfinite(sum(xs) + sum(ys))
    except TypeError:  # numbers that are written as text
        is_finite = False
    return (min(xs), min(ys), max(xs), max(ys)) if is_finite else (math.nan,) * 4


def mask_fault(mask: Any, outline: tuple[float, ...], size: tuple[float, float]) -> str | None:
    """Name the check that finds a fault in a mask; None if there is none.

    Args:
        mask: of an object; None: it is not loaded.
        outline: its `outline_of`.
        size: width and height of the image in pixels.
    """
    if mask is not None and len(mask) == 0:
        return 'masks-missing'
    if isinstance(mask, dict) and not covers(mask, size):
        return 'run-lengths'
    if not isinstance(mask, list):
        return None
    if not all(isinstance(polygon, list) for polygon in mask):
        return 'outlines-flat'
    if not all(abs(value) <= FARTHEST * max(size) for value in outline):  # NaN is not either
        is_text = any(isinstance(value, str) for polygon in mask for value in polygon)
        return 'outlines-text' if is_text else 'outlines-far'
    return 'outlines-short' if all(map(is_short, mask)) or lacks_a_value(mask) else None


def covers(mask: dict[str, Any], size: tuple[float, float]) -> bool:
    """Whether run lengths in COCO layout are for all pixels of an image of size (width, height)."""
    width, height = size
    counts = mask.get('counts')
    is_whole = not isinstance(counts, list) or sum(counts) == width * height
    return mask.get('size') == [height, width] and is_whole


def is_short(polygon: Sequence[float]) -> bool:
    """Whether a polygon x1, y1, x2, y2, … has fewer than three points."""
    return len(polygon) < 6


def lacks_a_value(polygons: Sequence[Sequence[float]]) -> bool:
    """Whether one of the polygons that have three points has half a point too."""
    return any(len(polygon) % 2 > 0 and not is_short(polygon) for polygon in polygons)


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
    """List the steps of a data set's pipeline, or of one variant of test-time augmentation."""
    steps: list[Any] = []
    for step in getattr(getattr(dataset, 'pipeline', None), 'transforms', ()):
        variants = getattr(step, 'subroutines', None)
        steps += variants[0].transforms if variants else [step]
    return steps


def scale_factor(item: Results) -> tuple[float, float]:
    """Return the factors (x, y) by which a pipeline has resized the image of a sample."""
    known = getattr(item.get('data_samples'), 'metainfo', {})
    across, down = known.get('scale_factor', (1, 1))[:2]
    return float(across), float(down)


def size_text(sizes: Sequence[tuple[float, float]]) -> str:
    """Return the size of images, or the smallest and the largest: width x height."""
    ends = {min(sizes, key=math.prod): None, max(sizes, key=math.prod): None}
    return ' to '.join(f'{width:.0f} x {height:.0f}' for height, width in ends)
