"""The tree of dicts inside a config: walking through it, and the classes that its model predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mmpola.messages import listed

IMAGENET = 'imagenet-1k'
"""Stands for ImageNet's 1,000 classes, by their WordNet numbers, where a folder or file could define the classes."""


def nodes(node: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted key, dict) for every dict inside a config, outermost first; `key` is that of `node` itself."""
    children: Iterable[tuple[Any, Any]] = enumerate(node) if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield key, node
        children = node.items()
    for name, child in children:
        yield from nodes(child, f'{key}.{name}' if key else str(name))


def leaves(dataset: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configs of the data sets inside wrappers such as RepeatDataset and ConcatDataset."""
    if 'dataset' in dataset:
        yield from leaves(dataset['dataset'])
    elif 'datasets' in dataset:
        for inner in dataset['datasets']:
            yield from leaves(inner)
    else:
        yield dataset


def predicted_classes(model: Any) -> list[tuple[str, int]]:
    """List (config key, num_classes) of a classifier and of every head except an RPN, which only finds objects."""
    return [
        (f'{key}.num_classes', node['num_classes'])
        for key, node in nodes(model, 'model')
        if 'num_classes' in node
        and (key == 'model' or 'head' in key)
        and 'rpn_head' not in key.split('.')
    ]


def class_count_problems(
    predicted: Iterable[tuple[str, int]], classes: Sequence[str], dataloader: str
) -> list[str]:
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
