"""The rule that a model predicts as many classes as its data set has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmpola.messages import listed


def class_count_problems(predicted: Iterable[tuple[str, int]], classes: Sequence[str], dataloader: str) -> list[str]:
    """Describe every mismatch between the classes of a model and those of a data set.

    Args:
        predicted: (config key, number of classes) of each classifier or head.
        classes: names of the data set's classes.
        dataloader: config key of the data set's loader, such as 'train_dataloader'.
    """
    return [
        f'{key}: expected {len(classes)}, the number of classes in {dataloader} ({listed(classes)}), got {count}'
        for key, count in predicted
        if count != len(classes)
    ]
