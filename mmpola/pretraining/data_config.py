"""What a classifier's config says about its test data: the classes and timm's transforms."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmpola.messages import info, listed
from mmpola.openmmlab.config.contents import IMAGENET, inner_datasets, type_name
from mmpola.pretraining.class_folders import class_names


def class_source(dataset: dict[str, Any], num_classes: int) -> str | Sequence[str]:
    """Return what defines the classes of a classifier's test data: its `classes`, else its `root`.

    For a classifier of 1,000 classes, these are the classes of ImageNet unless that file exists or
    that folder has 1,000 classes: released weights can be used without the training images.

    Args:
        dataset: config of the data.
        num_classes: of the classifier.
    """
    given = dataset.get('classes')
    if isinstance(given, (list, tuple)):
        return list(given)
    source = Path(str(given or dataset.get('root') or 'test_dataloader.dataset.classes'))
    if num_classes == 1000 and not source.is_file():
        folders = [path for path in source.glob('[!.]*') if path.is_dir()]
        if len(folders) != 1000:
            return IMAGENET
    return str(source)


def name_imagenet_classes(cfg: Config) -> None:
    """Give a classifier's test data the classes of ImageNet where `class_source` says so."""
    for dataset in _test_class_folders(cfg):
        if class_source(dataset, cfg.model.get('num_classes')) == IMAGENET:
            dataset['classes'] = IMAGENET


def name_trained_classes(cfg: Config, names: Sequence[str]) -> None:
    """Give a classifier's test data the classes in its checkpoint, if nothing else defines them.

    That is so if the folder or file of classes in the config does not exist. ImageNet's classes are
    left to `name_imagenet_classes`, because some may be absent from the test data.

    Args:
        cfg: config of the classifier.
        names: the classes in the order of their labels; empty if they are unknown.
    """
    if not names or list(names) == class_names(IMAGENET):
        return
    for dataset in _test_class_folders(cfg):
        source = dataset.get('classes')
        if isinstance(source, str) and source != IMAGENET and not os.path.exists(source):
            print(f'{source}: not found; the classes are those in the checkpoint: {listed(names)}')
            dataset['classes'] = list(names)


def _test_class_folders(cfg: Config) -> Iterator[dict[str, Any]]:
    """Yield the config of every `ClassFolders` in the test data."""
    if 'test_dataloader' in cfg:
        for dataset in inner_datasets(cfg.test_dataloader.dataset):
            if type_name(dataset.get('type')) == 'ClassFolders':
                yield dataset


def evaluation_transform(cfg: Config) -> dict[str, Any]:
    """Return the arguments of timm's transforms for a classifier's test images.

    They are the arguments in the config of the (first) test data. `input_size` is always among
    them; timm's defaults apply for others that are missing.
    """
    transform = None
    if 'test_dataloader' in cfg:
        transform = next(inner_datasets(cfg.test_dataloader.dataset)).get('transform')
    if not isinstance(transform, dict):
        info(
            "test_dataloader.dataset.transform: no arguments for timm's transforms; "
            'its defaults are used'
        )
        transform = {}
    return {'input_size': cfg.model.backbone.get('pretrain_img_size', 224), **transform}
