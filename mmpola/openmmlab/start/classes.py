"""Compares the classes of a checkpoint and of the data, or starts from the shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from torch import Tensor

from mmpola.messages import UsageError, info, listed
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import class_list_problem
from mmpola.openmmlab.start.fit import TrainingCheckpoint
from mmpola.openmmlab.start.weights import load

STARTED = 'the heads start from the weights for these other classes'
TAUGHT = 'each of these is taught as the class of the same number'
"""What is logged of classes with other names: of the weights of a new run, and of a teacher."""

LAST_LAYERS = {'fc_cls': 1, 'fc_reg': 4, 'conv_logits': 1, 'conv_seg': 1}
"""Last layers of the heads of mmdet and mmseg that have rows for each class -> how many.

The rows of a class stand together. More rows than these are for no class, such as the background,
and come last.
"""


class ClassesHook(Hook):
    """Compares the classes of a checkpoint with the classes of the data set that the runner built.

    Weights for classes in another order fit, and predict one class for another. A file, or a data
    set, that names no classes is not compared.

    Args:
        path: of the checkpoint.
        classes: names of the classes that it was trained on, by label; may be empty.
        loader: 'train_dataloader' or 'test_dataloader'.
        others: what is logged if the names are others, which is then allowed; another number of
            classes is, too.

    Raises:
        UsageError: names or order differ; if others are allowed, the order of the same names.
    """

    priority = 'VERY_HIGH'

    def __init__(self, path: str, classes: Sequence[str], loader: str, others: str = '') -> None:
        self.path = path
        self.classes = classes
        self.loader = loader
        self.others = others

    def before_run(self, runner: Any) -> None:
        """Compare."""
        loader = self.loader
        found = classes_of(runner, loader)
        if not found and loader == 'train_dataloader' and runner.val_loop is not None:
            loader = 'val_dataloader'  # images without labels have no classes
            found = classes_of(runner, loader)
        if not self.classes or not found:
            return
        if self.others and len(found) != len(self.classes):
            return
        problem = class_list_problem(self.classes, self.path, found, f'{loader}.dataset')
        if problem is None:
            return
        if self.others and set(found) != set(self.classes):
            info(f'{problem}; {self.others}')
        else:
            raise UsageError(
                f'{problem}; metainfo.classes of the data set, or classes of class folders, sets '
                'their order'
            )


def classes_of(runner: Any, loader: str) -> Sequence[str] | None:
    """Return the names of the classes of a loader's data set, by label; None if it has none."""
    metainfo = getattr(getattr(runner, loader).dataset, 'metainfo', None) or {}
    classes: Sequence[str] | None = metainfo.get('classes')
    return classes


class SharedClassesHook(Hook):
    """Starts the last layers of heads from a checkpoint's weights for the classes of the data.

    Classes are found by name, so their order and number may differ. Other classes keep the initial
    weights of the run. A box layer for all classes is the start of each class.

    Args:
        checkpoint: its other weights are loaded by another hook.

    Attributes:
        weights: the checkpoint's tensors with rows of classes; none if it names no classes.
    """

    priority = 'VERY_HIGH'

    def __init__(self, checkpoint: TrainingCheckpoint) -> None:
        self.path = checkpoint.path
        self.classes = checkpoint.classes
        self.weights: dict[str, Tensor] = {}
        if self.classes:
            for name, weight in checkpoint.weights.items():
                if rows_of(name) is not None:
                    self.weights[name] = weight

    def before_train(self, runner: Any) -> None:
        """Load the rows, and log which classes have them."""
        classes = classes_of(runner, 'train_dataloader') or ()
        shared = [name for name in classes if name in self.classes]
        state = unwrapped(runner.model).state_dict()
        mixed = {}
        for name, own in state.items():
            given = self.weights.get(name)
            if given is None:
                continue
            weight = given if given.shape == own.shape else None
            if shared:
                weight = with_shared_rows(own, given, rows_of(name), classes, self.classes)
            if weight is not None:
                mixed[name] = weight
        state.update(mixed)  # the others are the model's own; the grids of its tables stay beside
        load(runner, state)
        self.weights = {}
        if shared:
            new = [name for name in classes if name not in self.classes]
            line = f'load_from: the heads start from {self.path} for {listed(shared)}'
            if new:
                line += f', and anew for {listed(new)}'
            info(line)
        elif classes and mixed:
            info(f'load_from: none of the classes of {self.path} is in the data; {STARTED}')


def rows_of(name: str) -> int | None:
    """Return the rows of a class in a tensor of a model, by its name; None if it has none."""
    layer, _, kind = name.rpartition('.')
    if kind not in ('weight', 'bias'):
        return None
    return LAST_LAYERS.get(layer.rpartition('.')[2])


def with_shared_rows(
    own: Tensor,
    given: Tensor,
    rows: int | None,
    own_classes: Sequence[str],
    given_classes: Sequence[str],
) -> Tensor | None:
    """Return a tensor of a last layer with the rows of the classes that another one knows.

    Args:
        own: [R C + E, …] of C classes, R rows for each, and E for none of them.
        given: [R K + E, …] of K classes; or [R, …], for all classes.
        rows: R; None: the tensor has no rows of classes.
        own_classes, given_classes: the C and the K names, by label.

    Returns:
        A copy of `own` with rows of `given`; None if the shapes are others.
    """
    if rows is None or own.shape[1:] != given.shape[1:]:
        return None
    extra = own.shape[0] - rows * len(own_classes)
    is_for_all = rows > 1 and given.shape[0] == rows
    if extra < 0 or (not is_for_all and given.shape[0] - rows * len(given_classes) != extra):
        return None
    mixed = own.clone()
    for label, name in enumerate(own_classes):
        if is_for_all:
            found = given
        elif name in given_classes:
            first = rows * list(given_classes).index(name)
            found = given[first : first + rows]
        else:
            continue
        mixed[rows * label : rows * (label + 1)] = found.to(own)
    if extra > 0 and not is_for_all:
        mixed[-extra:] = given[-extra:].to(own)
    return mixed
