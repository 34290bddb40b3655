"""The kinds of data sets that are checked, and what inspecting one returns: counts, broken rules, checks of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.registry import DATASETS

from mmpola.config_tree import IMAGENET
from mmpola.messages import BrokenRule, grouped
from mmpola.read_image import unreadable

FileCheck = Callable[[], list[BrokenRule]]
"""Reads one file and returns the rules that it breaks."""


@dataclass
class Contents:
    """What a data set holds.

    Attributes:
        images, annotations: counts of what a loader returns, after everything that it drops.
        unannotated: number of these images without any annotation.
        classes: names in the order of their labels; empty if unknown.
        problems: prevent training.
        warnings: what a loader drops; training runs without it.
        notes: unusual, but do not prevent training.
        without_mask: annotations that a loader keeps although they have no segmentation, which
            masks are made from.
        image_files: checks of all images.
        label_files: checks of all label maps, or masks in run lengths; a sample of them is run
            before every training.
    """

    images: int = 0
    annotations: int = 0
    unannotated: int = 0
    classes: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    without_mask: list[str] = field(default_factory=list)
    image_files: list[FileCheck] = field(default_factory=list)
    label_files: list[FileCheck] = field(default_factory=list)


Rule = tuple[list[str], str, Iterable[object]]
"""(the `problems`, `warnings` or `notes` of a data set, a rule, what breaks it)."""


def apply(table: Iterable[Rule]) -> None:
    """Add a line for every rule that something breaks: the rule, how many break it, and the first of them."""
    for lines, rule, items in table:
        lines += grouped((rule, str(item)) for item in items)


def check_image(folder: Path, path: Path) -> list[BrokenRule]:
    """Check that an image below a folder can be read."""
    reason = unreadable(path)
    return (
        [(f'{folder}: images that cannot be read', f'{path.relative_to(folder)} ({reason})')]
        if reason
        else []
    )


class Kind(NamedTuple):
    """How data sets of one kind are recognised by their config, and how they are inspected.

    Attributes:
        name: shown in the table.
        matches: whether a data set's config is of this kind.
        paths: the files and folders that a config names.
        inspector: module of this package and function that inspects a data set; imported for this
            kind of data alone. Without one, only the paths are checked.
        unloaded: arguments with which a data set is built without reading its annotations.
    """

    name: str
    matches: Callable[[dict[str, Any]], bool]
    paths: Callable[[dict[str, Any]], list[Path]]
    inspector: tuple[str, ...]
    unloaded: dict[str, Any]

    def inspect(self, dataset: Any) -> Contents:
        """Return the contents of a data set, which was built with `unloaded`."""
        module, function = self.inspector
        contents: Contents = getattr(import_module(f'mmpola.apps.data_checks.{module}'), function)(
            dataset
        )
        return contents


def openmmlab_paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the annotation file and the folders of an mmdet or mmseg data set, or its root if it names neither."""
    root, prefix = Path(dataset.get('data_root') or ''), dataset.get('data_prefix') or {}
    names = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    return [root / name for name in names if name] or [root]


def _names(dataset: dict[str, Any], *prefixes: str) -> bool:
    """Whether a data set's `data_prefix` names these folders."""
    prefix = dataset.get('data_prefix')
    return isinstance(prefix, dict) and {*prefixes} <= prefix.keys()


def _class_name(dataset: dict[str, Any]) -> str:
    return str(dataset.get('type')).removeprefix('mmpola.')


def _sequence_paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the folder of the official files, under the name that it has here."""
    return [DATASETS.get(f'mmpola.{_class_name(dataset)}').folder(dataset['root'])]


UNLOADED = {'lazy_init': True, 'pipeline': []}
"""Arguments for data sets that derive from MMEngine's BaseDataset."""

KINDS = (
    Kind(
        'COCO',
        lambda dataset: (
            str(dataset.get('ann_file') or '').endswith('.json') and _names(dataset, 'img')
        ),
        openmmlab_paths,
        ('coco', 'inspect'),
        UNLOADED,
    ),
    Kind(
        'label maps',
        lambda dataset: _names(dataset, 'img_path', 'seg_map_path'),
        openmmlab_paths,
        ('label_maps', 'inspect'),
        UNLOADED,
    ),
    Kind(
        'class folders',
        lambda dataset: _class_name(dataset) == 'ClassFolders',
        lambda dataset: [
            Path(dataset[key])
            for key in ('root', 'classes')
            if dataset.get(key) not in (None, '', IMAGENET)
            and not isinstance(dataset[key], (list, tuple))  # names of classes
        ],
        ('folders', 'inspect_class_folders'),
        {},
    ),
    Kind(
        'sequences',
        lambda dataset: (
            _class_name(dataset) in ('ListOps', 'ByteText', 'Retrieval', 'Pathfinder', 'GreyCIFAR')
        ),
        _sequence_paths,
        ('folders', 'inspect_sequences'),
        {},
    ),
    Kind('', lambda dataset: True, openmmlab_paths, (), {}),
)
"""The first kind that matches is used."""
