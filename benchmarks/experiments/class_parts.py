"""Parts of class folders, for data sets whose publishers have split them into fewer than needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmpola.pretraining.class_folders import ClassFolders
from mmpola.registry import DATASETS


@DATASETS.register_module()
class ClassFoldersPart(ClassFolders):
    """The pictures at some places of every row of `every` pictures.

    45,000 indices in a config would do too, but MMEngine writes the config to three places when
    training starts: 50 seconds.

    Args:
        every: length of a row, in the order of `ClassFolders`.
        places: positions in a row, from 0.
        arguments: of `ClassFolders`.

    Raises:
        ValueError: as in `ClassFolders`.
    """

    def __init__(self, *, every: int, places: Sequence[int], **arguments: Any) -> None:
        super().__init__(**arguments)
        place = np.arange(len(self.labels)) % every
        self._keep(np.isin(place, places))
