"""Check that a model predicts as many classes as its data set has; find what names the classes of a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmpola.config_tree import leaves
from mmpola.data.class_folders import IMAGENET
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


def class_source(dataset: dict[str, Any], num_classes: int) -> str:
    """Return what defines the classes of a classifier's test data: its `classes`, else its `root`.

    A classifier of 1,000 classes has those of ImageNet, unless that folder or file exists and has 1,000 classes too:
    released weights can be used without the training images.

    Args:
        dataset: config of the data.
        num_classes: of the classifier.
    """
    source = Path(str(dataset.get('classes') or dataset.get('root') or 'test_dataloader.dataset.classes'))
    if num_classes == 1000 and not source.is_file():
        return str(source) if sum(path.is_dir() for path in source.glob('[!.]*')) == 1000 else IMAGENET
    return str(source)


def name_imagenet_classes(cfg: Config) -> None:
    """Let the class folders of a classifier's test data have the classes of ImageNet where `class_source` says so."""
    for dataset in leaves(cfg.test_dataloader.dataset) if 'test_dataloader' in cfg else ():
        if (
            dataset.get('type') == 'mmpola.ClassFolders'
            and class_source(dataset, cfg.model.get('num_classes')) == IMAGENET
        ):
            dataset['classes'] = IMAGENET
