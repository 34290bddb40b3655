"""Checkpoints that tools/train.py writes: what they hold, and whether they fit the model of a config.

MMEngine only warns about tensors that are missing, unknown or of another shape, and continues with a partly loaded
model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import local_checkpoint
from mmpola.checkpoint.meta_model import model_on_meta
from mmpola.checkpoint.reading import read_checkpoint
from mmpola.config_parts import predicted_classes
from mmpola.messages import UsageError, listed

TIME_STAMP = re.compile(r'_\d{8}_\d{6}$')
"""MMEngine appends it to a config's name to name a training run."""

OPTIONAL_BUFFER = 'num_batches_tracked'
"""A counter that BatchNorm layers in old files lack; MMEngine and torch accept that too."""

AVERAGED = 'averaged (EMA) weights are used, not the raw weights of the last step'


@dataclass
class TrainingCheckpoint:
    """A file's content as MMEngine will get it, and the tensors that will be loaded into the model."""

    path: str
    content: Mapping[str, Any]
    weights: dict[str, Tensor]

    @property
    def averaged(self) -> bool:
        """Whether `weights` are EMA weights: MMEngine's EMAHook swaps them with the raw ones when it saves."""
        return 'ema_state_dict' in self.content

    @property
    def meta(self) -> Mapping[str, Any]:
        """The entry `meta` of the file; empty for a bare state dict."""
        meta = self.content.get('meta')
        return meta if isinstance(meta, Mapping) else {}

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes that it was trained on, in the order of their labels; empty if the file does not say."""
        dataset = self.meta.get('dataset_meta')
        classes = dataset.get('classes') if isinstance(dataset, Mapping) else None
        return classes if isinstance(classes, (list, tuple)) else ()

    @property
    def config_name(self) -> str | None:
        """Name of the config that it was trained with, None if the file does not say."""
        name = self.meta.get('experiment_name')
        return TIME_STAMP.sub('', name) if isinstance(name, str) else None


def locate(name: str | Path) -> Path:
    """Return the local file of a checkpoint that the user named by its path, a URL or a model, see `local_checkpoint`.

    Raises:
        UsageError: there is no such file, or it cannot be downloaded.
    """
    try:
        return local_checkpoint(name)
    except FileNotFoundError:
        raise UsageError(f'{name}: no such checkpoint') from None
    except CheckpointError as error:
        raise UsageError(str(error)) from None


def read(name: str | Path) -> TrainingCheckpoint:
    """Read a checkpoint of tools/train.py, or a bare state dict with the names of a whole model.

    Raises:
        UsageError: the file does not exist, cannot be read, or has no weights where MMEngine looks for them.
    """
    path = locate(name)
    try:
        content = read_checkpoint(path)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    state_dict = content.get('state_dict', content) if isinstance(content, Mapping) else None
    tensors = (
        {key: x for key, x in state_dict.items() if isinstance(x, Tensor)} if isinstance(state_dict, Mapping) else {}
    )
    if not tensors:
        keys = f', got one with the keys {listed(content)}' if isinstance(content, Mapping) else ''
        raise UsageError(f'{path}: expected a checkpoint of tools/train.py, with a state_dict{keys}')
    return TrainingCheckpoint(str(path), content, {key.removeprefix('module.'): x for key, x in tensors.items()})


def check_fits(checkpoint: TrainingCheckpoint, cfg: Config) -> None:
    """Compare a checkpoint with the config's model, which is built on the meta device, without memory for weights.

    Raises:
        UsageError: the model predicts another number of classes, or tensors are missing, unknown, of another shape or
            not finite; the message names the first of each.
    """
    model = model_on_meta(cfg)
    for key, count in predicted_classes(cfg.model):
        if checkpoint.classes and count != len(checkpoint.classes):
            raise UsageError(
                f'{key}: expected {len(checkpoint.classes)}, the number of classes in {checkpoint.path} '
                f'({listed(checkpoint.classes)}), got {count}'
            )
    if problems := misfits(model.state_dict(), checkpoint.weights):
        lines = '\n'.join(f'  {problem}' for problem in problems)
        origin = f'; it was trained with {checkpoint.config_name}' if checkpoint.config_name else ''
        raise UsageError(
            f'{checkpoint.path}: does not fit the {type(model).__name__} of {cfg.filename}{origin}\n{lines}'
        )


def check_start(checkpoint: TrainingCheckpoint, cfg: Config) -> str:
    """Compare a checkpoint with the model that starts from its weights (`load_from`): heads may differ, backbones not.

    Returns:
        One line: how many tensors are loaded, and which parts of the model stay as initialised.

    Raises:
        UsageError: no tensor of the backbone fits.
    """
    expected, weights = model_on_meta(cfg).state_dict(), checkpoint.weights
    fitting = {key for key, x in expected.items() if key in weights and weights[key].shape == x.shape}
    if not any(key.startswith('backbone.') for key in fitting):
        raise UsageError(
            f'load_from: {checkpoint.path}: expected weights for the backbone of {cfg.filename}, got '
            f'{len(weights)} tensors of which none fits it: {listed(weights, 3)}; weights of a backbone alone are '
            "loaded by model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
        )
    new = dict.fromkeys('.'.join(key.split('.')[:2]) for key in expected if key not in fitting)
    parts = f'; as initialised: {listed(new)}' if new else ''
    return f'load_from: {checkpoint.path}: {len(fitting)} of {len(expected)} tensors are loaded{parts}'


def misfits(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Describe, one line per kind, how `weights` differ from a model whose state dict is `expected`."""
    missing = [f'{key} {list(x.shape)}' for key, x in expected.items() if key not in weights]
    unknown = [f'{key} {list(x.shape)}' for key, x in weights.items() if key not in expected]
    shared = {key: x for key, x in weights.items() if key in expected}
    misshapen = [
        f'{key} {list(x.shape)} instead of {list(expected[key].shape)}'
        for key, x in shared.items()
        if x.shape != expected[key].shape
    ]
    broken = [key for key, x in shared.items() if not torch.isfinite(x).all()]
    found = {
        'missing': [entry for entry in missing if OPTIONAL_BUFFER not in entry],
        'unknown': unknown,
        'of another shape': misshapen,
        'with NaN or infinite values': broken,
    }
    return [f'{len(entries)} {what}: {listed(entries)}' for what, entries in found.items() if entries]
