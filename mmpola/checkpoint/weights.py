"""Loading weights into a backbone or a classifier: every format of the contract, whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.checkpoint.reading import CheckpointError, read_checkpoint
from mmpola.layers import Grid, resize_bias_table, resize_table
from mmpola.messages import info

CONTAINERS = ('model_ema', 'state_dict_ema', 'state_dict', 'model')
"""Keys under which weights are stored, best first. MMEngine's EMAHook already writes averages to `state_dict`."""

WRAPPERS = ('_orig_mod.', 'module.')
"""Prefixes that torch.compile and data parallelism put before every name."""

SIZE_DEPENDENT = ('relative_position_index', 'attn_mask', 'angle')
"""Buffers that follow from the input size or the architecture: computed here, never read from a file."""


class Loadable(nn.Module):
    """A model that knows how files name its weights, which of them may be missing and which tables are resized."""

    def own_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """A file's tensors under the names that they have in this model; what is not its own keeps any name."""
        raise NotImplementedError

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        """Names in a full checkpoint that belong to stages this model leaves out."""
        raise NotImplementedError

    def fresh_prefixes(self) -> tuple[str, ...]:
        """Names that a pretrained file need not have: the output norms."""
        raise NotImplementedError

    def position_tables(self) -> dict[str, Grid]:
        """Grid of each learned position table [1, h*w, C], by parameter name."""
        raise NotImplementedError


@dataclass
class LoadReport:
    """What happened to the tensors of `source`, a file; `str()` is the log line."""

    source: str
    container: str
    loaded: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f'{self.source}: loaded {len(self.loaded)} tensors from {self.container!r}']
        for name in ('resized', 'dropped', 'new'):
            if entries := getattr(self, name):
                lines.append(f'{name}: ' + ', '.join(entries))
        return '; '.join(lines)


def check_init_cfg(init_cfg: dict[str, Any] | None) -> None:
    """Raise ValueError unless `init_cfg` is None or names a file to load."""
    if init_cfg is not None and (init_cfg.get('type') != 'Pretrained' or 'checkpoint' not in init_cfg):
        raise ValueError(f"init_cfg: expected None or dict(type='Pretrained', checkpoint=PATH), got {init_cfg}")


def load_weights(model: Loadable, path: str | Path) -> LoadReport:
    """Load a file into a model and log what was loaded, resized, dropped and left new.

    Takes the authors' files (`{'model': …}`), training checkpoints of ours, mmdet or mmseg (`state_dict`, with
    `backbone.` or `module.` prefixes, averaged weights preferred) and bare state dicts. Position tables are resized to
    the backbone's `pretrain_img_size`; heads and stages that the model does not have are dropped; output norms that the
    file does not have stay new.

    Raises:
        FileNotFoundError, CheckpointError: see `read_checkpoint`; also a missing, misshapen, unknown or non-finite
            tensor: the message lists all of them and the model keeps its weights.
    """
    container, weights = find_weights(read_checkpoint(path), path)
    report = LoadReport(str(path), container)
    model.load_state_dict(fit_weights(model, weights, report), strict=False)
    info(str(report))
    return report


def find_weights(content: Any, path: str | Path) -> tuple[str, dict[str, Tensor]]:
    """(where they were found, the named tensors) of whatever `read_checkpoint` returned.

    Raises:
        CheckpointError: no named tensors are in it.
    """
    candidates = {name: content[name] for name in CONTAINERS if name in content} if _is_mapping(content) else {}
    for name, candidate in (*candidates.items(), ('bare state dict', content)):
        if _is_mapping(candidate):
            tensors = {key: value for key, value in candidate.items() if isinstance(value, Tensor)}
            if tensors:
                return name, {_unwrapped(key): value for key, value in tensors.items()}
    raise CheckpointError(f'{path}: no weights found, neither under {", ".join(CONTAINERS)} nor as a bare state dict')


def _is_mapping(content: Any) -> bool:
    return isinstance(content, Mapping)


def _unwrapped(key: str) -> str:
    for prefix in WRAPPERS:
        key = key.removeprefix(prefix)
    return key


def fit_weights(model: Loadable, weights: dict[str, Tensor], report: LoadReport) -> dict[str, Tensor]:
    """The tensors to load under the model's names, tables resized; what happened to each is added to the report.

    Raises:
        CheckpointError: listing every tensor that does not fit.
    """
    weights = model.own_weights(weights)
    expected = model.state_dict()
    roots = {_root(key) for key in expected}
    tables = model.position_tables()
    fitted: dict[str, Tensor] = {}
    problems = []
    for key, x in weights.items():
        if key.endswith(SIZE_DEPENDENT):
            continue
        if key not in expected:
            if _root(key) in roots and not key.startswith(model.unbuilt_prefixes()):
                problems.append(f'unknown: {key} {list(x.shape)}')
            else:
                report.dropped.append(key)
            continue
        resized = _resized(key, x, expected[key], tables)
        if resized.shape != x.shape:
            report.resized.append(f'{key} {list(x.shape)} -> {list(resized.shape)}')
        if resized.shape != expected[key].shape:
            shapes = f'expected {list(expected[key].shape)}, got {list(x.shape)}'
            problems.append(f'wrong shape: {key} {shapes}{_of_classes(key, expected[key], x)}')
        elif not torch.isfinite(x).all():
            problems.append(f'not finite: {key} has {int((~torch.isfinite(x)).sum())} NaN or infinite values')
        else:
            fitted[key] = resized
    for key in expected.keys() - weights.keys():
        if key.startswith(model.fresh_prefixes()):
            report.new.append(key)
        else:
            problems.append(f'missing: {key} {list(expected[key].shape)}')
    if problems:
        listing = '\n  '.join(sorted(problems))
        raise CheckpointError(f'{report.source}: does not fit {type(model).__name__}; nothing was loaded\n  {listing}')
    report.loaded = list(fitted)
    return fitted


def _root(key: str) -> str:
    """The part of a backbone or head that a tensor is in: unknown tensors of a known part are no mere extras."""
    return key.removeprefix('backbone.').split('.')[0]


def _of_classes(key: str, expected: Tensor, x: Tensor) -> str:
    """Why a classifier's last layer has another shape."""
    if not key.startswith('head.') or expected.shape[:1] == x.shape[:1]:
        return ''
    return f' (num_classes is {len(expected)}, the file has {len(x)})'


def _resized(key: str, x: Tensor, target: Tensor, tables: dict[str, tuple[int, int]]) -> Tensor:
    """A position table brought to the model's grid; other tensors, and tables of another kind of shape, unchanged."""
    if x.shape == target.shape or x.ndim != target.ndim or x.shape[-1] != target.shape[-1]:
        return x
    if key.endswith('relative_position_bias_table'):
        return resize_bias_table(x, (math.isqrt(target.shape[0]) + 1) // 2)
    side = math.isqrt(x.shape[1]) if key in tables else 0
    return resize_table(x, (side, side), tables[key]) if side and side**2 == x.shape[1] else x
