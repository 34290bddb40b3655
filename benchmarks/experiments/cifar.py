"""CIFAR-10's training pictures in two parts, since its publishers keep none for validation."""

from __future__ import annotations

from typing import Any

from mmpola.classification.class_folders import ClassFolders
from mmpola.registry import DATASETS


@DATASETS.register_module()
class CIFARTrainingPart(ClassFolders):
    """One part of the 50,000 training pictures.

    A list of 45,000 indices in the config would do too, but MMEngine writes the config to three
    places when training starts: 50 seconds.

    Args:
        held_out: True: every tenth picture, for validation. False: the other nine.
        arguments: of `ClassFolders`.

    Raises:
        ValueError: as in `ClassFolders`.
        IndexError: there are fewer than 50,000 pictures.
    """

    def __init__(self, *, held_out: bool, **arguments: Any) -> None:
        pictures = range(50_000)
        part = [index for index in pictures if (index % 10 == 0) == held_out]
        super().__init__(indices=part, **arguments)
