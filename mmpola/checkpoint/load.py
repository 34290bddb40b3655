"""Loading weights into a backbone or a classifier from any supported file: either all of them or none."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.layers import Grid, position_tables, resize_bias_table, resize_table
from mmpola.messages import info, listed, printable

CONTAINERS = ('model_ema', 'state_dict_ema', 'state_dict', 'model')
"""Keys under which files store weights, in order of preference. MMEngine's EMAHook saves averages in `state_dict`."""

WRAPPERS = ('_orig_mod.', 'module.')
"""Prefixes that torch.compile and DistributedDataParallel add to every name."""

COUNTER = 'num_batches_tracked'
"""Of BatchNorm layers; old files lack it, which torch and MMEngine accept too."""


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What a parameter is loaded from. Integers and complex numbers would be cast without a word."""


class Loadable(nn.Module):
    """A model that knows how files name its weights, and which of them a file may lack."""

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename a file's tensors to the names in this model; tensors that are not its own may keep any name."""
        raise NotImplementedError

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Rename names in a state dict: the hook of `load_state_dict`, torch's and MMEngine's, of any outer model."""
        own = {
            name.removeprefix(prefix): state_dict.pop(name)
            for name in list(state_dict)
            if name.startswith(prefix)
        }
        state_dict |= {prefix + name: x for name, x in self.rename_weights(own).items()}
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of tensors that a pretrained file need not have: the output norms."""
        raise NotImplementedError


@dataclass
class LoadReport:
    """What happened to the tensors of a file; `str()` gives the log line.

    Attributes:
        source: the file.
        model: name of the model's class.
        loaded: names of the tensors that fit.
        resized: position tables that were interpolated, with both shapes.
        dropped: names of tensors that the model does not use: heads, and stages that it does not
            build.
        new: names of output norms, which the file lacks and which stay as initialised.
        problems: a line for each kind of misfit, with the first names; nothing is loaded if there
            are any.
        container: key under which the file holds the tensors, where the source is a file.
    """

    source: str
    model: str
    loaded: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    container: str = ''

    def __str__(self) -> str:
        lines = [
            f'{printable(self.source)}: loaded {len(self.loaded)} tensors from {self.container!r}'
        ]
        for name in ('resized', 'dropped', 'new'):
            if entries := getattr(self, name):
                lines.append(f'{name}: {listed(entries)}')
        return '; '.join(lines)

    def refuse_misfits(self, remedy: str = '') -> None:
        """Raise CheckpointError, which lists the problems and what to do, if tensors do not fit."""
        if self.problems:
            listing = '\n  '.join(self.problems)
            unfit = f'{printable(self.source)}: does not fit {self.model}; nothing was loaded'
            raise CheckpointError(f'{unfit}\n  {listing}{remedy}')


def load_weights(model: Loadable, path: str | Path) -> LoadReport:
    """Load a file into a model and log which tensors were loaded, resized, dropped or left as initialised.

    Takes the authors' files (`{'model': …}`), training checkpoints of mmpola, mmdet and mmseg
    (`state_dict`, with `backbone.` or `module.` prefixes; averaged weights are preferred) and bare
    state dicts. Position tables are resized to the backbone's `pretrain_img_size`, those of keys
    and of windows bicubically as by the authors; heads and stages that the model does not have are
    dropped; output norms that the file lacks stay as initialised.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read (see `read_checkpoint`), or tensors are missing,
            unknown, of a wrong shape or dtype, not dense or not finite: the message names the first
            of each, and the model keeps its weights.
    """
    container, weights = find_weights(read_checkpoint(path), path)
    return load_tensors(model, model.rename_weights(weights), str(path), container)


def load_tensors(
    model: Loadable,
    weights: Mapping[str, Tensor],
    source: str,
    container: str,
    may_lack: tuple[str, ...] = (),
) -> LoadReport:
    """Load tensors under the model's names, all or none, and log what happened; see `fit_weights` for the arguments.

    Raises:
        CheckpointError: tensors do not fit.
    """
    tensors, report = fit_weights(model, weights, source, may_lack)
    report.container = container
    report.refuse_misfits()
    own = model.state_dict()
    with torch.no_grad():
        for key, x in tensors.items():
            own[key].copy_(x)
    info(str(report))
    return report


def find_weights(content: Any, path: str | Path) -> tuple[str, dict[str, Tensor]]:
    """Find the weights in what `read_checkpoint` returned; returns (key that holds them, tensors by name).

    Raises:
        CheckpointError: there are no tensors in it, a key of one is no name, or one is not dense.
    """
    shown = printable(path)
    candidates = (
        {name: content[name] for name in CONTAINERS if name in content}
        if isinstance(content, Mapping)
        else {}
    )
    for name, candidate in (*candidates.items(), ('bare state dict', content)):
        if isinstance(candidate, Mapping):
            tensors = {key: value for key, value in candidate.items() if isinstance(value, Tensor)}
            if unnamed := [key for key in tensors if not isinstance(key, str)]:
                raise CheckpointError(
                    f'{shown}: {name}: expected tensors by name, got the keys {listed(unnamed)}'
                )
            if tensors:
                check_dense(tensors, path)
                found = OrderedDict((_unwrapped(key), value) for key, value in tensors.items())
                # Versions of modules, by which load hooks tell the names of older files.
                versions = getattr(candidate, '_metadata', None)
                if isinstance(versions, Mapping):
                    vars(found)['_metadata'] = {
                        _unwrapped(f'{key}.')[:-1]: value for key, value in versions.items()
                    }
                return name, found
    raise CheckpointError(
        f'{shown}: no weights found, neither under {", ".join(CONTAINERS)} nor as a bare state dict'
    )


def check_dense(tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise CheckpointError unless every tensor holds plain values, one per element of its shape.

    The message names the first tensor that does not, and what it is instead. An expanded tensor of
    a few bytes in a file could otherwise fill the memory.
    """
    for key, x in tensors.items():
        if got := _not_dense(x):
            name = printable(f'{source}: {key}')
            raise CheckpointError(
                f'{name}: expected a dense tensor with values of its own, got {got}'
            )


def _not_dense(x: Tensor) -> str:
    """Return what a tensor is instead of dense, '' if it is dense."""
    if x.is_nested:
        return 'a nested tensor'
    if x.layout != torch.strided:
        return f'a sparse tensor ({_short(x.layout)})'
    if x.is_quantized:
        return f'a quantised tensor ({_short(x.dtype)})'
    if x.is_meta:
        return 'a tensor without values (meta)'
    if x.is_floating_point() and x.dtype not in FLOATS:
        return f'a tensor of {_short(x.dtype)}'
    stored = x.untyped_storage().nbytes() // x.element_size()
    if x.numel() > stored:
        return f'an expanded tensor, {x.numel()} values of which {stored} are stored'
    return ''


def _short(kind: torch.dtype | torch.layout) -> str:
    """Return the name of a dtype or layout without 'torch.'."""
    return str(kind).removeprefix('torch.')


def _check_dtypes(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str
) -> None:
    """Raise CheckpointError unless parameters are given by real numbers, and counters by integers."""
    for key, x in weights.items():
        target = expected.get(key)
        if target is None:
            continue
        allowed = FLOATS if target.is_floating_point() else (target.dtype,)
        if x.dtype not in allowed:
            rule = f'expected {listed(map(_short, allowed))}'
            raise CheckpointError(
                f'{printable(source)}: {printable(key)}: {rule}, got {_short(x.dtype)}'
            )


def _unwrapped(key: str) -> str:
    while key.startswith(WRAPPERS):  # in any order: either may wrap the other
        key = key.partition('.')[2]
    return key


def fit_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    may_lack: tuple[str, ...] = (),
    exact: bool = False,
) -> tuple[dict[str, Tensor], LoadReport]:
    """Compare tensors with a model and fit them to it, without loading them.

    Position tables are resized, and tensors of parts that the model does not have are dropped.

    Args:
        model: gives the names, the shapes and the grids of the position tables.
        weights: tensors by the model's names, see `Loadable.rename_weights`.
        source: the file, for messages.
        may_lack: prefixes of tensors that the file need not have, in addition to the model's
            `optional_prefixes()`.
        exact: the tensors must be the model's state dict as it is, but for the counters of
            BatchNorm layers, which may be missing, as in torch. This always applies to models that
            are not `Loadable`.

    Returns:
        (tensors that can be loaded, none if one does not fit, report on every tensor).

    Raises:
        CheckpointError: a tensor is not dense, or is not of floating point although the model's is.
    """
    expected = model.state_dict()
    report = LoadReport(source, type(model).__name__)
    fitted = dict(weights)
    check_dense(weights, source)
    _check_dtypes(expected, weights, source)
    if isinstance(model, Loadable) and not exact:
        may_lack = (*model.optional_prefixes(), *may_lack)
        parts, tables = {_part(key) for key in expected}, position_tables(model)
        report.dropped = [key for key in weights if key not in expected and _part(key) not in parts]
        for key in report.dropped:
            del fitted[key]
        for key, x in fitted.items():
            fitted[key] = _resized(key, x, expected[key], tables) if key in expected else x
            if fitted[key].shape != x.shape:
                report.resized.append(f'{key} {list(x.shape)} -> {list(fitted[key].shape)}')
    report.loaded = [
        key for key, x in fitted.items() if key in expected and x.shape == expected[key].shape
    ]
    report.new = [key for key in expected if key not in fitted and key.startswith(may_lack)]
    report.problems = _misfits(expected, fitted, may_lack)
    return ({} if report.problems else fitted), report


def _misfits(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], may_lack: tuple[str, ...]
) -> list[str]:
    """Describe how `weights` differ from a model whose state dict is `expected`: a line per kind, with the first names.

    Tensors that begin with `may_lack` may be missing, and so may the counters of BatchNorm layers.
    """
    shared = {key: x for key, x in weights.items() if key in expected}
    found = {
        'missing': [
            f'{key} {list(x.shape)}'
            for key, x in expected.items()
            if key not in weights and not key.endswith(COUNTER) and not key.startswith(may_lack)
        ],
        'not finite': [
            f'{key} has {int((~torch.isfinite(x)).sum())} NaN or infinite values'
            for key, x in shared.items()
            if not torch.isfinite(x).all()
        ],
        'unknown': [f'{key} {list(x.shape)}' for key, x in weights.items() if key not in expected],
        'wrong shape': [
            f'{key} expected {list(expected[key].shape)}, got {list(x.shape)}{_of_classes(key, expected[key], x)}'
            for key, x in shared.items()
            if x.shape != expected[key].shape
        ],
    }
    return [f'{what}: {listed(entries)}' for what, entries in found.items() if entries]


def _part(key: str) -> str:
    """Return the part of a model that a tensor belongs to; the tensors of a file in parts that a model has must fit."""
    first, *rest = key.removeprefix('backbone.').split('.')
    return (
        f'{first}.{rest[0]}' if first in ('stages', 'norms') and rest else first
    )  # of which some may not be built


def _of_classes(key: str, expected: Tensor, x: Tensor) -> str:
    """Explain a wrong shape of a classifier's last layer by its number of classes."""
    if not key.startswith('head.') or expected.shape[:1] == x.shape[:1]:
        return ''
    return f' (num_classes is {len(expected)}, the file has {len(x)})'


def _resized(key: str, x: Tensor, target: Tensor, tables: dict[str, Grid]) -> Tensor:
    """Resize a position table to the model's grid; return any other tensor unchanged.

    As in the authors' `load_pretrained`, tables of keys and bias tables are resized bicubically.
    Their code resizes no `pos_embed`, which is resized bilinearly, as in a forward pass.
    """
    if x.shape == target.shape or x.ndim != target.ndim or x.shape[-1] != target.shape[-1]:
        return x
    if key.endswith('relative_position_bias_table'):
        side = math.isqrt(x.shape[0])  # 2 s - 1, of windows of side s
        return (
            resize_bias_table(x, (math.isqrt(target.shape[0]) + 1) // 2)
            if side % 2 and side**2 == len(x)
            else x
        )
    side = math.isqrt(x.shape[1]) if key in tables else 0
    if side == 0 or side**2 != x.shape[1]:
        return x
    mode = 'bicubic' if key.endswith('positional_encoding') else 'bilinear'
    return resize_table(x, (side, side), tables[key], mode)
