"""Loading weights into a backbone: every format of the contract, whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmpola import log
from mmpola.backbones.safe_pickle import CheckpointError, read_checkpoint
from mmpola.layers import resize_bias_table, resize_table

if TYPE_CHECKING:
    from mmpola.backbones.pyramid import Pyramid

CONTAINERS = ('model_ema', 'state_dict_ema', 'state_dict', 'model')
"""Keys under which weights are stored, best first. MMEngine's EMAHook already writes averages to `state_dict`."""

WRAPPERS = ('_orig_mod.', 'module.')
"""Prefixes that torch.compile and data parallelism put before every name."""

SIZE_DEPENDENT = ('relative_position_index', 'attn_mask', 'angle')
"""Buffers that follow from the input size or the architecture: computed here, never read from a file."""


@dataclass
class LoadReport:
    """What happened to a file's tensors; `str()` is the log line."""

    path: Path
    container: str
    loaded: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f'{self.path}: loaded {len(self.loaded)} tensors from {self.container!r}']
        for name in ('resized', 'dropped', 'new'):
            if entries := getattr(self, name):
                lines.append(f'{name}: ' + ', '.join(entries))
        return '; '.join(lines)


def load_backbone(backbone: Pyramid, path: str | Path) -> LoadReport:
    """Load a file into a backbone and log what was loaded, resized, dropped and left new.

    Takes the authors' files (`{'model': …}`), training checkpoints of ours, mmdet or mmseg (`state_dict`, with
    `backbone.` or `module.` prefixes, averaged weights preferred) and bare state dicts. Position tables are resized to
    the backbone's `pretrain_img_size`; heads and stages that the backbone does not have are dropped; output norms that
    the file does not have stay new.

    Raises:
        FileNotFoundError, CheckpointError: see `read_checkpoint`; also a missing, misshapen, unknown or non-finite
            tensor: the message lists all of them and the backbone keeps its weights.
    """
    container, weights = find_weights(read_checkpoint(path), path)
    report = LoadReport(Path(path), container)
    fitted = _fit(backbone, _of_backbone(weights), report)
    backbone.load_state_dict(fitted, strict=False)
    report.loaded = list(fitted)
    log.info(str(report))
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


def _of_backbone(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under `backbone.` with that prefix taken off, or all of them where nothing has it."""
    inside = {key.removeprefix('backbone.'): x for key, x in weights.items() if key.startswith('backbone.')}
    return inside or weights


def _fit(backbone: Pyramid, weights: dict[str, Tensor], report: LoadReport) -> dict[str, Tensor]:
    """The tensors to load, tables resized; raises with every tensor that does not fit."""
    model = backbone.state_dict()
    roots = {key.split('.')[0] for key in model}
    tables = backbone.position_tables()
    fitted: dict[str, Tensor] = {}
    problems = []
    for key, x in weights.items():
        if key.endswith(SIZE_DEPENDENT):
            continue
        if key not in model:
            if key.split('.')[0] in roots and not key.startswith(backbone.unbuilt_prefixes()):
                problems.append(f'unknown: {key} {list(x.shape)}')
            else:
                report.dropped.append(key)
            continue
        resized = _resized(key, x, model[key], tables)
        if resized.shape != x.shape:
            report.resized.append(f'{key} {list(x.shape)} -> {list(resized.shape)}')
        if resized.shape != model[key].shape:
            problems.append(f'wrong shape: {key} expected {list(model[key].shape)}, got {list(x.shape)}')
        elif not torch.isfinite(x).all():
            problems.append(f'not finite: {key} has {int((~torch.isfinite(x)).sum())} NaN or infinite values')
        else:
            fitted[key] = resized
    for key in model.keys() - weights.keys():
        if key.startswith(backbone.fresh_prefixes()):
            report.new.append(key)
        else:
            problems.append(f'missing: {key} {list(model[key].shape)}')
    if problems:
        listing = '\n  '.join(sorted(problems))
        raise CheckpointError(f'{report.path}: does not fit {type(backbone).__name__}; nothing was loaded\n  {listing}')
    return fitted


def _resized(key: str, x: Tensor, target: Tensor, tables: dict[str, tuple[int, int]]) -> Tensor:
    """A position table brought to the model's grid; other tensors, and tables of another kind of shape, unchanged."""
    if x.shape == target.shape or x.ndim != target.ndim or x.shape[-1] != target.shape[-1]:
        return x
    if key.endswith('relative_position_bias_table'):
        return resize_bias_table(x, (math.isqrt(target.shape[0]) + 1) // 2)
    side = math.isqrt(x.shape[1]) if key in tables else 0
    return resize_table(x, (side, side), tables[key]) if side and side**2 == x.shape[1] else x
