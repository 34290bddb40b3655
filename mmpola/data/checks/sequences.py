"""Inspect data sets of token sequences, whose constructors read and check every file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from mmpola.data.checks.contents import Contents

TYPES = ('ListOps', 'ByteText', 'Retrieval', 'Pathfinder', 'GreyCIFAR')


def matches(dataset: dict[str, Any]) -> bool:
    """Whether a data set's config is of this kind: it is one of the Long Range Arena's."""
    return str(dataset.get('type')) in {*TYPES, *(f'mmpola.{name}' for name in TYPES)}


def paths(dataset: dict[str, Any]) -> list[Path]:
    """Return the folder of the official files, under the name that it has here."""
    return [DATASETS.get(f'mmpola.{str(dataset["type"]).split(".")[-1]}').folder(dataset['root'])]


def inspect(dataset: Any) -> Contents:
    """Count the samples of a data set and the classes that occur in it."""
    labels = dataset.samples.arrays['labels']
    classes = dataset.metainfo['classes']
    contents = Contents(
        len(dataset), len(dataset), classes=classes, warnings=[*dataset.left_out], notes=[*dataset.notes]
    )
    counts = np.bincount(labels, minlength=len(classes))
    if not counts.all():
        absent = [name for name, count in zip(classes, counts, strict=True) if not count]
        contents.notes.append(f'{dataset.root}: classes without samples: {", ".join(absent)}')
    return contents
