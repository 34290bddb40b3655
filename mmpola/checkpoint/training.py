"""Checkpoints that train.py writes: read without executing anything, and held against a config's model before use.

MMEngine only warns of tensors that are missing, unknown or of another shape, and goes on with a model loaded in parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from mmpola.checkpoint.reading import CheckpointError, read_checkpoint
from mmpola.messages import UsageError, listed

TIME_STAMP = re.compile(r'_\d{8}_\d{6}$')
"""What MMEngine appends to a config's name to call a training."""

NOT_COMPARED = 'num_batches_tracked'
"""A counter that batch norms of old files lack; MMEngine and torch let it be absent."""

AVERAGED = 'averaged (EMA) weights are used; the raw ones of the last step stay aside'


@dataclass
class TrainingCheckpoint:
    """A file's content, as MMEngine will see it, and the tensors it will load into the model."""

    path: str
    content: Mapping[str, Any]
    weights: dict[str, Tensor]

    @property
    def averaged(self) -> bool:
        """Whether `weights` are those of an EMA: MMEngine's EMAHook puts the raw ones aside when it saves."""
        return 'ema_state_dict' in self.content

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the training wrote about itself; empty for a bare state dict."""
        meta = self.content.get('meta')
        return meta if isinstance(meta, Mapping) else {}

    @property
    def training(self) -> str | None:
        """Name of the config that it was trained with, None if the file does not say."""
        name = self.meta.get('experiment_name')
        return TIME_STAMP.sub('', name) if isinstance(name, str) else None


def read(path: str | Path) -> TrainingCheckpoint:
    """A checkpoint of train.py, or a bare state dict with a model's names.

    Raises:
        UsageError: no such file, not readable, or no weights where MMEngine looks for them.
    """
    if not Path(path).is_file():
        raise UsageError(f'{path}: no such checkpoint')
    try:
        content = read_checkpoint(path)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    state_dict = content.get('state_dict', content) if isinstance(content, Mapping) else None
    tensors = (
        {key: x for key, x in state_dict.items() if isinstance(x, Tensor)} if isinstance(state_dict, Mapping) else {}
    )
    if not tensors:
        held = f'; it holds {listed(content)}' if isinstance(content, Mapping) else ''
        raise UsageError(f'{path}: no checkpoint of tools/train.py: no state_dict in it{held}')
    return TrainingCheckpoint(str(path), content, {key.removeprefix('module.'): x for key, x in tensors.items()})


def check_fits(checkpoint: TrainingCheckpoint, cfg: Config) -> None:
    """Hold a checkpoint against the config's model, which is built without memory for this.

    Raises:
        UsageError: tensors are missing, unknown, of another shape or not finite; names the first of each.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    model = getattr(model, 'module', model)  # of test-time augmentation: MMEngine too loads into what it wraps
    if problems := misfits(model.state_dict(), checkpoint.weights):
        lines = '\n'.join(f'  {problem}' for problem in problems)
        origin = f'; it comes from a training of {checkpoint.training}' if checkpoint.training else ''
        raise UsageError(
            f'{checkpoint.path}: does not fit the {type(model).__name__} of {cfg.filename}{origin}\n{lines}'
        )


def misfits(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """One line for each way in which `weights` are not those of a model whose state dict is `expected`."""
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
        'missing': [entry for entry in missing if NOT_COMPARED not in entry],
        'unknown': unknown,
        'of another shape': misshapen,
        'with NaN or infinite values': broken,
    }
    return [f'{len(entries)} {what}: {listed(entries)}' for what, entries in found.items() if entries]
