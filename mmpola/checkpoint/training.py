"""Checkpoints for the model of a config: what they hold, and whether they fit it.

MMEngine only warns about tensors that are missing, unknown or of another shape, and continues with a partly loaded
model. It looks for weights under `state_dict` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import Tensor, nn

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import local_checkpoint
from mmpola.checkpoint.meta_model import model_on_meta
from mmpola.checkpoint.reading import read_checkpoint
from mmpola.checkpoint.weights import Loadable, find_weights, fit_weights, misfits
from mmpola.config_parts import predicted_classes
from mmpola.messages import UsageError, listed

TIME_STAMP = re.compile(r'_\d{8}_\d{6}$')
"""MMEngine appends it to a config's name to name a training run."""

AVERAGED = 'averaged (EMA) weights are used, not the raw weights of the last step'

BACKBONE = 'backbone.'


@dataclass
class TrainingCheckpoint:
    """A checkpoint that has been read.

    Attributes:
        path: of the local file.
        content: as MMEngine will get it, with the weights under `state_dict`.
        weights: the tensors that will be loaded into the model.
        container: key under which the file holds them.
    """

    path: str
    content: Mapping[str, Any]
    weights: dict[str, Tensor]
    container: str = 'state_dict'

    @property
    def averaged(self) -> bool:
        """Whether `weights` are EMA weights: MMEngine's EMAHook swaps them with the raw ones when it saves."""
        return self.container.endswith('ema') or 'ema_state_dict' in self.content

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
    """Read any file of weights that `find_weights` knows.

    Raises:
        UsageError: the file does not exist, cannot be read, or has no weights.
    """
    path = locate(name)
    try:
        content = read_checkpoint(path)
        container, weights = find_weights(content, path)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    if container != 'state_dict':
        content = {'state_dict': weights}
    return TrainingCheckpoint(str(path), content, weights, container)


def read_fitting(name: str | Path, cfg: Config) -> TrainingCheckpoint:
    """Read the weights of a config's whole model, and print which of a file's weights are used, if there is a choice.

    A classifier's are fitted to it as by `init_cfg`: any names, with tables resized. Those of other models must be its
    state dict.

    Raises:
        UsageError: see `read` and `check_fits`.
    """
    checkpoint = read(name)
    model = model_on_meta(cfg)
    _check_classes(checkpoint, cfg)
    if isinstance(model, Loadable):
        try:
            weights, report = fit_weights(model, checkpoint.weights, checkpoint.path)
        except CheckpointError as error:
            raise _misfit(checkpoint, cfg, model, str(error).splitlines()[1:]) from None
        content = {**checkpoint.content, 'state_dict': weights}
        checkpoint = replace(checkpoint, content=content, weights=weights)
        if report.dropped or report.resized:
            print(replace(report, container=checkpoint.container))
    else:
        _check_names(checkpoint, cfg, model)
    if checkpoint.averaged:
        print(f'{name}: {AVERAGED}')
    return checkpoint


def check_fits(checkpoint: TrainingCheckpoint, cfg: Config) -> None:
    """Compare a checkpoint with the config's model, which is built on the meta device, without memory for weights.

    Raises:
        UsageError: the model predicts another number of classes, or tensors are missing, unknown, of another shape or
            not finite; the message names the first of each.
    """
    model = model_on_meta(cfg)
    _check_classes(checkpoint, cfg)
    _check_names(checkpoint, cfg, model)


def _check_names(checkpoint: TrainingCheckpoint, cfg: Config, model: nn.Module) -> None:
    expected, weights = model.state_dict(), checkpoint.weights
    if problems := misfits(expected, weights):
        others = dict.fromkeys(key.split('.')[0] for key in expected if not key.startswith(BACKBONE))
        if hasattr(model, 'backbone') and not any(key.split('.')[0] in others for key in weights):
            raise UsageError(
                f'{checkpoint.path}: expected the weights of a whole {type(model).__name__}, got none of its '
                f'{listed(others)}; training starts from weights of a backbone alone by '
                "model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
            )
        raise _misfit(checkpoint, cfg, model, problems)


def _check_classes(checkpoint: TrainingCheckpoint, cfg: Config) -> None:
    for key, count in predicted_classes(cfg.model):
        if checkpoint.classes and count != len(checkpoint.classes):
            raise UsageError(
                f'{key}: expected {len(checkpoint.classes)}, the number of classes in {checkpoint.path} '
                f'({listed(checkpoint.classes)}), got {count}'
            )


def _misfit(checkpoint: TrainingCheckpoint, cfg: Config, model: nn.Module, problems: Sequence[str]) -> UsageError:
    lines = '\n'.join(f'  {problem.strip()}' for problem in problems)
    origin = f'; it was trained with {checkpoint.config_name}' if checkpoint.config_name else ''
    return UsageError(f'{checkpoint.path}: does not fit the {type(model).__name__} of {cfg.filename}{origin}\n{lines}')


def check_start(checkpoint: TrainingCheckpoint, cfg: Config) -> str:
    """Compare a checkpoint with the model that starts from its weights (`load_from`): heads may differ, backbones not.

    Returns:
        One line: how many tensors are loaded, and which parts of the model stay as initialised.

    Raises:
        UsageError: no tensor of the backbone fits.
    """
    expected, weights = model_on_meta(cfg).state_dict(), checkpoint.weights
    fitting = {key for key, x in expected.items() if key in weights and weights[key].shape == x.shape}
    if not any(key.startswith(BACKBONE) for key in fitting):
        raise UsageError(
            f'load_from: {checkpoint.path}: expected weights for the backbone of {cfg.filename}, got '
            f'{len(weights)} tensors of which none fits it: {listed(weights, 3)}; weights of a backbone alone are '
            "loaded by model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
        )
    new = dict.fromkeys('.'.join(key.split('.')[:2]) for key in expected if key not in fitting)
    parts = f'; as initialised: {listed(new)}' if new else ''
    return f'load_from: {checkpoint.path}: {len(fitting)} of {len(expected)} tensors are loaded{parts}'
