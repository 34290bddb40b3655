"""What a data set must hold, by its kind: each kind has a file here and a row in KINDS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmpola.data.checks import class_folders, coco, label_maps
from mmpola.data.checks.contents import Contents


class Kind(NamedTuple):
    """How data sets of one kind are recognised, by their config, and looked into, built.

    Args:
        name: as the table shows it.
        describes: whether a config is of this kind.
        places: the files and folders that a config names.
        inspect: looks into the data set.
        unloaded: arguments with which it is built without reading its annotations.
    """

    name: str
    describes: Callable[[dict[str, Any]], bool]
    places: Callable[[dict[str, Any]], list[Path]]
    inspect: Callable[[Any], Contents]
    unloaded: dict[str, Any]


def openmmlab_places(dataset: dict[str, Any]) -> list[Path]:
    """The annotation file and the folders of a data set of mmdet's or mmseg's; its root where it names neither."""
    root, prefix = Path(dataset.get('data_root') or ''), dataset.get('data_prefix') or {}
    names = [dataset.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    return [root / name for name in names if name] or [root]


UNLOADED = {'lazy_init': True, 'pipeline': []}
"""For data sets on MMEngine's BaseDataset."""


KINDS = (
    Kind('COCO', coco.describes, openmmlab_places, coco.inspect, UNLOADED),
    Kind('label maps', label_maps.describes, openmmlab_places, label_maps.inspect, UNLOADED),
    Kind('class folders', class_folders.describes, class_folders.places, class_folders.inspect, {}),
)
"""The first that describes a data set inspects it; of a data set of no kind only the existence is checked."""


def kind_of(dataset: dict[str, Any]) -> Kind | None:
    """The kind of a data set's config, None if it is of no known one."""
    return next((kind for kind in KINDS if kind.describes(dataset)), None)
