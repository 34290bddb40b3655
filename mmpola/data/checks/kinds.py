"""The kinds of data set that can be inspected: each has a module in this package and an entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmpola.data.checks import class_folders, coco, label_maps, sequences
from mmpola.data.checks.contents import Contents


class Kind(NamedTuple):
    """How data sets of one kind are recognised by their config, and how they are inspected.

    Attributes:
        name: shown in the table.
        matches: whether a data set's config is of this kind.
        paths: the files and folders that a config names.
        inspect: returns the contents of the data set, which is built with `unloaded`.
        unloaded: arguments with which it is built without reading its annotations.
    """

    name: str
    matches: Callable[[dict[str, Any]], bool]
    paths: Callable[[dict[str, Any]], list[Path]]
    inspect: Callable[[Any], Contents]
    unloaded: dict[str, Any]


def openmmlab_paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the annotation file and the folders of an mmdet or mmseg data set, or its root if it names neither."""
    root, prefix = Path(dataset.get('data_root') or ''), dataset.get('data_prefix') or {}
    names = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    return [root / name for name in names if name] or [root]


UNLOADED = {'lazy_init': True, 'pipeline': []}
"""Arguments for data sets that derive from MMEngine's BaseDataset."""

KINDS = (
    Kind('COCO', coco.matches, openmmlab_paths, coco.inspect, UNLOADED),
    Kind('label maps', label_maps.matches, openmmlab_paths, label_maps.inspect, UNLOADED),
    Kind('class folders', class_folders.matches, class_folders.paths, class_folders.inspect, {}),
    Kind('sequences', sequences.matches, sequences.paths, sequences.inspect, {}),
)
"""The first kind that matches is used. If none matches, only the paths of the data set are checked."""


def kind_of(dataset: dict[str, Any]) -> Kind | None:
    """Return the kind that matches a data set's config, None if none does."""
    return next((kind for kind in KINDS if kind.matches(dataset)), None)
