"""What is inside a config: its dicts, its data sets, and the classes that its model predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from mmpola.messages import UsageError, listed

IMAGENET = 'imagenet-1k'
"""Stands for ImageNet's 1,000 classes, by their WordNet numbers.

Arguments that name a folder or file with the classes also take this value.
"""


def type_name(kind: Any) -> str:
    """Return the name of a type without its scope or module: 'FPN' of the class or 'mmdet.FPN'."""
    if isinstance(kind, str):
        return kind.rpartition('.')[2]
    return getattr(kind, '__name__', str(kind))


def nodes(node: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted key, dict) for every dict inside a config, outermost first.

    Args:
        node: a config, or a value inside it.
        key: the dotted key of `node`, '' for a whole config.
    """
    if isinstance(node, dict):
        yield key, node
        children: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    else:
        return
    for name, child in children:
        child_key = str(name)
        if key:
            child_key = f'{key}.{name}'
        yield from nodes(child, child_key)


def skipped_checks(cfg: Any) -> list[str]:
    """Return the names of the checks that a config leaves out.

    Raises:
        UsageError: its `data_checks` is not a dict with a list `skip`.
    """
    settings = cfg.get('data_checks') or {}
    if isinstance(settings, dict) and settings.keys() <= {'skip'}:
        names = settings.get('skip') or []
        if isinstance(names, (list, tuple)):
            return list(names)
    raise UsageError(f"data_checks: expected dict(skip=['NAME', …]), got {settings!r}")


def inner_datasets(dataset: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configs of the data sets inside wrappers, such as ConcatDataset."""
    if 'dataset' in dataset:
        yield from inner_datasets(dataset['dataset'])
    elif 'datasets' in dataset:
        for inner in dataset['datasets']:
            yield from inner_datasets(inner)
    else:
        yield dataset


def input_channels(model: dict[str, Any]) -> int:
    """Return the channels of the images that the backbone of a config's model reads."""
    model = model.get('module', model)  # inside of a wrapper for test-time augmentation
    channels: int = model.get('backbone', {}).get('in_channels', 3)
    return channels


def predicted_classes(model: Any) -> list[tuple[str, int]]:
    """List (config key, num_classes) of a classifier and of every head that predicts classes.

    Left out are heads with classes of their own: an RPN head tells objects from background, the
    semantic branch of HTC and SCNet predicts COCO-stuff, and STDC's detail head boundaries.
    """
    found = []
    for key, node in nodes(model, 'model'):
        predicts = key == 'model' or 'head' in key
        has_own = not {'rpn_head', 'semantic_head'}.isdisjoint(key.split('.'))
        if 'num_classes' in node and predicts and not has_own and 'boundary_threshold' not in node:
            found.append((f'{key}.num_classes', node['num_classes']))
    return found


def class_count_problems(
    predicted: Iterable[tuple[str, int]], classes: Sequence[str], source: str
) -> list[str]:
    """Describe every mismatch between the classes of a model and of its data or weights.

    Args:
        predicted: (config key, number of classes) of each classifier or head.
        classes: names of the classes of the data set, or of a checkpoint.
        source: config key of the data set's loader, such as 'train_dataloader', or the checkpoint.
    """
    problems = []
    for key, count in predicted:
        if count != len(classes):
            problems.append(
                f'{key}: expected {len(classes)}, the number of classes in {source} '
                f'({listed(classes)}), got {count}'
            )
    return problems


def class_list_problem(
    expected: Sequence[str], source: str, given: Sequence[str], where: str
) -> str | None:
    """Describe how a list of classes differs from another one, in names or order; None if not.

    Args:
        expected: names of the classes by label.
        source: where they are from.
        given: names that should be the same.
        where: where these are from.
    """
    for label, (one, other) in enumerate(zip_longest(expected, given)):
        if one != other:
            return (
                f'{where}: expected the classes of {source} in their order, '
                f'{listed(expected[label:]) or "none"} from label {label} on, '
                f'got {listed(given[label:]) or "none"}'
            )
    return None


def head_ignore_index(model: Any) -> int | None:
    """Return the label that the segmentation heads of a model ignore; None if they differ."""
    found = set()
    for key, node in nodes(model, 'model'):
        name = key.rstrip('.0123456789').split('.')[-1]  # there may be several
        if name in ('decode_head', 'auxiliary_head') and 'num_classes' in node:
            found.add(node.get('ignore_index', 255))
    if len(found) > 1:
        return None
    return int(next(iter(found), 255))


def evaluators(cfg: Any, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (config key, dict) of every dict in the evaluator of a split of a config."""
    yield from nodes(cfg.get(f'{split}_evaluator'), f'{split}_evaluator')
