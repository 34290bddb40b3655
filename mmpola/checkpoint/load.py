"""Load weights into a backbone or a classifier from any supported file: all of them or none.

`load_weights` reads top to bottom: read the file, find the weights in it, rename them, fit them to
the model, load them.
"""

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
"""Keys under which files store weights, in order of preference.

Averaged weights are preferred; MMEngine's EMAHook saves them in `state_dict`.
"""

WRAPPER_PREFIXES = ('_orig_mod.', 'module.')
"""Prefixes that torch.compile and DistributedDataParallel add to every name."""

BATCH_NORM_COUNTER = 'num_batches_tracked'
"""End of the name of a buffer that old files may lack, as torch and MMEngine also permit."""

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes from which parameters are loaded; torch would also cast integers and complex numbers."""


class Loadable(nn.Module):
    """A model that knows how files name its weights, and which of them a file may lack."""

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename a file's tensors to the names in this model; foreign tensors keep any name."""
        raise NotImplementedError

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of tensors that a pretrained file need not have: the output norms."""
        raise NotImplementedError

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Rename this model's tensors in a state dict, perhaps that of an outer model.

        `load_state_dict` of torch and of MMEngine call this for every module.
        """
        own = {}
        for name in list(state_dict):
            if name.startswith(prefix):
                own[name.removeprefix(prefix)] = state_dict.pop(name)
        for name, x in self.rename_weights(own).items():
            state_dict[prefix + name] = x
        super()._load_from_state_dict(state_dict, prefix, *arguments)


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
        new: names of tensors that the file may lack and lacks, such as output norms; they stay as
            initialised.
        missing, not_finite, unknown, wrong_shape: names of tensors that do not fit, with shapes or
            counts; nothing is loaded if there are any.
        container: key under which the file holds the tensors.
    """

    source: str
    model: str
    loaded: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    wrong_shape: list[str] = field(default_factory=list)
    container: str = ''

    @property
    def problems(self) -> list[str]:
        """A line for each kind of misfit, with the first names."""
        lines = []
        if self.missing:
            lines.append(f'missing: {listed(self.missing)}')
        if self.not_finite:
            lines.append(f'not finite: {listed(self.not_finite)}')
        if self.unknown:
            lines.append(f'unknown: {listed(self.unknown)}')
        if self.wrong_shape:
            lines.append(f'wrong shape: {listed(self.wrong_shape)}')
        return lines

    def __str__(self) -> str:
        count = len(self.loaded)
        text = f'{printable(self.source)}: loaded {count} tensors from {self.container!r}'
        if self.resized:
            text += f'; resized: {listed(self.resized)}'
        if self.dropped:
            text += f'; dropped: {listed(self.dropped)}'
        if self.new:
            text += f'; new: {listed(self.new)}'
        return text

    def refuse_misfits(self, remedy: str = '') -> None:
        """Raise a CheckpointError that lists the problems and a remedy, if tensors do not fit."""
        problems = self.problems
        if problems:
            listing = '\n  '.join(problems)
            unfit = f'{printable(self.source)}: does not fit {self.model}; nothing was loaded'
            raise CheckpointError(f'{unfit}\n  {listing}{remedy}')


def load_weights(model: Loadable, name: str | Path) -> LoadReport:
    """Load a file into a model and log which tensors were loaded, resized, dropped or left.

    Takes the authors' files (`{'model': …}`), training checkpoints of mmpola, mmdet and mmseg
    (`state_dict`, with `backbone.` or `module.` prefixes; averaged weights are preferred) and bare
    state dicts. Position tables are resized to the backbone's `pretrain_img_size`, tables of keys
    and windows bicubically as in the authors' code. Heads and stages that the model does not have
    are dropped, and output norms that the file lacks stay as initialised.

    Args:
        model: backbone or classifier.
        name: path or name of the file, see `mmpola.checkpoint.hub`.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read (see `read_checkpoint`), or tensors are missing,
            unknown, of a wrong shape or dtype, not dense or not finite: the message names the first
            of each, and the model keeps its weights.
    """
    content = read_checkpoint(name)
    container, weights = find_weights(content, name)
    renamed = model.rename_weights(weights)
    return load_tensors(model, renamed, str(name), container)


def load_tensors(
    model: Loadable,
    weights: Mapping[str, Tensor],
    source: str,
    container: str,
    may_lack: tuple[str, ...] = (),
) -> LoadReport:
    """Load tensors under the model's names, all or none, and log what happened.

    See `fit_weights` for the arguments.

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


def find_weights(content: Any, source: str | Path) -> tuple[str, dict[str, Tensor]]:
    """Find the weights in what `read_checkpoint` returned.

    Returns:
        (key that holds them, tensors by name).

    Raises:
        CheckpointError: it holds no tensors, a tensor has a key that is not a string, or a tensor
            is not dense.
    """
    shown = printable(source)
    candidates = []
    if isinstance(content, Mapping):
        for container in CONTAINERS:
            if container in content:
                candidates.append((container, content[container]))
    candidates.append(('bare state dict', content))
    for container, candidate in candidates:
        if not isinstance(candidate, Mapping):
            continue
        tensors = {key: value for key, value in candidate.items() if isinstance(value, Tensor)}
        if not tensors:
            continue
        unnamed = [key for key in tensors if not isinstance(key, str)]
        if unnamed:
            rule = f'expected tensors by name, got the keys {listed(unnamed)}'
            raise CheckpointError(f'{shown}: {container}: {rule}')
        check_dense(tensors, source)
        found = OrderedDict((_without_wrappers(key), x) for key, x in tensors.items())
        # The versions of modules: load hooks tell by them which names a file uses.
        versions = getattr(candidate, '_metadata', None)
        if isinstance(versions, Mapping):
            renamed = {}
            for module, value in versions.items():
                renamed[_without_wrappers(f'{module}.').removesuffix('.')] = value
            vars(found)['_metadata'] = renamed
        return container, found
    keys = ', '.join(CONTAINERS)
    raise CheckpointError(
        f'{shown}: no weights found, neither under {keys} nor as a bare state dict'
    )


def _without_wrappers(key: str) -> str:
    while key.startswith(WRAPPER_PREFIXES):  # each may wrap the other
        key = key.partition('.')[2]
    return key


def check_dense(tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise CheckpointError unless every tensor holds plain values, one per element of its shape.

    The message names the first other tensor and its kind. An expanded tensor, a few bytes in a
    file, could otherwise fill the memory.
    """
    for key, x in tensors.items():
        got = _kind_if_not_dense(x)
        if got:
            name = printable(f'{source}: {key}')
            rule = 'expected a dense tensor with values of its own'
            raise CheckpointError(f'{name}: {rule}, got {got}')


def _kind_if_not_dense(x: Tensor) -> str:
    """Return the kind of a tensor that is not dense, '' for a dense one."""
    if x.is_nested:
        return 'a nested tensor'
    if x.layout != torch.strided:
        return f'a sparse tensor ({_plain_name(x.layout)})'
    if x.is_quantized:
        return f'a quantised tensor ({_plain_name(x.dtype)})'
    if x.is_meta:
        return 'a tensor without values (meta)'
    if x.is_floating_point() and x.dtype not in FLOAT_DTYPES:
        return f'a tensor of {_plain_name(x.dtype)}'
    stored = x.untyped_storage().nbytes() // x.element_size()
    if x.numel() > stored:
        return f'an expanded tensor, {x.numel()} values of which {stored} are stored'
    return ''


def _plain_name(kind: torch.dtype | torch.layout) -> str:
    """Return the name of a dtype or layout without 'torch.'."""
    return str(kind).removeprefix('torch.')


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
        exact: the tensors must be exactly the model's state dict; only the counters of BatchNorm
            layers may be missing, as in torch. This always applies to models that are not
            `Loadable`.

    Returns:
        (tensors to load, report on every tensor); there are no tensors to load if one does not fit.

    Raises:
        CheckpointError: a tensor is not dense, or has a dtype that cannot be loaded into the
            model's tensor.
    """
    check_dense(weights, source)
    expected = model.state_dict()
    report = LoadReport(source, type(model).__name__)
    adapt = False
    parts: set[str] = set()
    tables: dict[str, Grid] = {}
    if isinstance(model, Loadable) and not exact:
        adapt = True  # drop what the model does not have, resize tables
        parts = {_part_of_model(key) for key in expected}
        tables = position_tables(model)
        may_lack = model.optional_prefixes() + may_lack

    fitted = {}
    for key, x in weights.items():
        if key not in expected:
            if adapt and _part_of_model(key) not in parts:
                report.dropped.append(key)
            else:
                report.unknown.append(f'{key} {list(x.shape)}')
            continue
        target = expected[key]
        _check_dtype(x, target, f'{source}: {key}')
        if adapt and x.shape != target.shape:
            resized = _resize_table(key, x, target, tables)
            if resized.shape != x.shape:
                report.resized.append(f'{key} {list(x.shape)} -> {list(resized.shape)}')
            x = resized
        if x.shape == target.shape:
            report.loaded.append(key)
        else:
            shapes = f'expected {list(target.shape)}, got {list(x.shape)}'
            report.wrong_shape.append(f'{key} {shapes}{_class_count_hint(key, target, x)}')
        finite = torch.isfinite(x)
        if not finite.all():
            count = int((~finite).sum())
            report.not_finite.append(f'{key} has {count} NaN or infinite values')
        fitted[key] = x

    for key, target in expected.items():
        if key in weights:
            continue
        if key.startswith(may_lack):
            report.new.append(key)
        elif not key.endswith(BATCH_NORM_COUNTER):
            report.missing.append(f'{key} {list(target.shape)}')

    if report.problems:
        fitted = {}
    return fitted, report


def _part_of_model(key: str) -> str:
    """Return the part of a model that a tensor belongs to.

    A file's tensors in parts that the model has must fit; others are dropped.
    """
    names = key.removeprefix('backbone.').split('.')
    if names[0] in ('stages', 'norms'):  # some stages, and their norms, may not be built
        return '.'.join(names[:2])
    return names[0]


def _check_dtype(x: Tensor, target: Tensor, name: str) -> None:
    """Raise CheckpointError unless a tensor can be loaded into a target of its dtype."""
    allowed: tuple[torch.dtype, ...] = (target.dtype,)
    if target.is_floating_point():
        allowed = FLOAT_DTYPES
    if x.dtype not in allowed:
        rule = f'expected {listed(_plain_name(dtype) for dtype in allowed)}'
        raise CheckpointError(f'{printable(name)}: {rule}, got {_plain_name(x.dtype)}')


def _class_count_hint(key: str, expected: Tensor, x: Tensor) -> str:
    """Explain a wrong shape of a classifier's last layer by its number of classes."""
    if not key.startswith('head.') or expected.shape[:1] == x.shape[:1]:
        return ''
    return f' (num_classes is {len(expected)}, the file has {len(x)})'


def _resize_table(key: str, x: Tensor, target: Tensor, tables: dict[str, Grid]) -> Tensor:
    """Resize a position table to the model's grid; return any other tensor unchanged.

    As in the authors' `load_pretrained`, tables of keys and bias tables are resized bicubically.
    Their code does not resize `pos_embed`; it is resized bilinearly, as in a forward pass.
    """
    if x.ndim != target.ndim or x.shape[-1] != target.shape[-1]:
        return x
    if key.endswith('relative_position_bias_table'):
        side = math.isqrt(x.shape[0])  # 2 s - 1, for windows of side s
        if side % 2 == 0 or side**2 != x.shape[0]:
            return x
        window_size = (math.isqrt(target.shape[0]) + 1) // 2
        return resize_bias_table(x, window_size)
    if key not in tables:
        return x
    side = math.isqrt(x.shape[1])
    if side == 0 or side**2 != x.shape[1]:
        return x
    mode = 'bilinear'
    if key.endswith('positional_encoding'):
        mode = 'bicubic'
    return resize_table(x, (side, side), tables[key], mode)
