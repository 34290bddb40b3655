"""CIFAR-10's training pictures in two parts, since its publishers keep none for validation."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmpola.classification.class_folders import ClassFolders
from mmpola.registry import DATASETS


@DATASETS.register_module()
class CIFARTrainingPart(ClassFolders):
    """One part of the training pictures.

    45,000 indices in a config would do too, but MMEngine writes the config to three places when
    training starts: 50 seconds.

    Args:
        held_out: True: every tenth picture, for validation. False: the other nine.
        arguments: of `ClassFolders`.

    Raises:
        ValueError: as in `ClassFolders`.
    """

    def __init__(self, *, held_out: bool, **arguments: Any) -> None:
        super().__init__(**arguments)
        is_tenth = np.arange(len(self.labels)) % 10 == 0
        self._keep(is_tenth == held_out)
