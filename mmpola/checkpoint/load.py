"""Load weights into a backbone or a classifier from any supported file: all of them or none.

In a row: `rename` gives the tensors the model's names, `adapt_stem` and `adapt_tables` convert what
depends on the images, `compare` reports on every tensor, and what fits is copied.
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
from mmpola.checkpoint.contents import find_weights, weights_note
from mmpola.checkpoint.hub import resolve_checkpoint
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.layers import Grid, position_tables, resize_bias_table, resize_table
from mmpola.messages import info, listed

BATCH_NORM_COUNTER = 'num_batches_tracked'
"""End of the name of a buffer that old files may lack, as torch and MMEngine also permit."""

STEM_WEIGHT = 'stem.proj.weight'
"""The first convolution of every backbone."""

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes from which parameters are loaded; torch would also cast integers and complex numbers."""


class RenamesWeights(nn.Module):
    """A model that gives tensors of files its own names, and says which of them a file may lack."""

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename a file's tensors to the names in this model; foreign tensors keep any name."""
        raise NotImplementedError

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of tensors that a pretrained file need not have: the output norms."""
        raise NotImplementedError

    def likely_model(self, weights: Mapping[str, Tensor]) -> str:
        """Return the name of the model to which weights belong that do not fit; '' if unknown."""
        return ''

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
        note: which weights were taken, if the file has plain and averaged ones.
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
    note: str = ''

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
        text = f'{self.source}: loaded {count} tensors from {self.container!r}'
        if self.note:
            text += f'; {self.note}'
        if self.resized:
            text += f'; resized: {listed(self.resized)}'
        if self.dropped:
            text += f'; dropped: {listed(self.dropped)}'
        if self.new:
            text += f'; new: {listed(self.new)}'
        return text


def refuse_misfits(report: LoadReport, model: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Raise a CheckpointError if tensors do not fit; it lists them, or names their own model.

    Args:
        report: what `compare` returned.
        model: the model.
        given: the tensors by the names in the file.
    """
    if not report.problems:
        return
    unfit = f'{report.source}: does not fit {report.model}; nothing was loaded'
    if isinstance(model, RenamesWeights) and not report.not_finite:
        likely = model.likely_model(given)
        if likely:
            raise CheckpointError(f'{unfit}; its tensors look like those of {likely}')
    listing = '\n  '.join(report.problems)
    raise CheckpointError(f'{unfit}\n  {listing}')


def load_weights(model: RenamesWeights, name: str | Path, which: str | None = None) -> LoadReport:
    """Load a file into a model and log which tensors were loaded, resized, dropped or left.

    Takes the authors' files (`{'model': …}`), training checkpoints of mmpola, mmdet and mmseg
    (`state_dict`, with `backbone.` or `module.` prefixes), also those of the authors' detectors,
    and bare state dicts. Position tables are resized to the backbone's `pretrain_img_size`, tables
    of keys and windows bicubically as in the authors' code. Heads and stages that the model does
    not have are dropped, and output norms that the file lacks stay as initialised. A stem of three
    channels is converted to the model's `in_channels`.

    Args:
        model: backbone or classifier.
        name: path or name of the file, see `mmpola.checkpoint.hub`.
        which: 'model' or 'ema', see `find_weights`.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read (see `read_checkpoint`), or tensors are missing,
            unknown, of a wrong shape or dtype, not dense or not finite: the message names the first
            of each, and the model keeps its weights.
    """
    path = resolve_checkpoint(name)
    return load_content(model, read_checkpoint(path), shown_source(name, path), which)


def load_content(
    model: RenamesWeights,
    content: Any,
    source: str,
    which: str | None = None,
    *,
    new_head: bool = False,
) -> LoadReport:
    """Load what `read_checkpoint` returned, as `load_weights` does.

    Args:
        model: backbone or classifier.
        content: of the file.
        source: the file, for messages.
        which: 'model' or 'ema', see `find_weights`.
        new_head: a head for another number of classes stays as initialised.

    Raises:
        CheckpointError: there are no weights, or they do not fit.
    """
    container, given = find_weights(content, source, which)
    weights = rename(model, given)
    notes = [weights_note(content, container)]
    may_lack: tuple[str, ...] = ()
    if new_head:
        note = drop_other_head(model, weights)
        if note:
            may_lack = ('head.',)
            notes.append(note)
    notes.append(adapt_stem(model, weights))
    resized = adapt_tables(model, weights)
    report = compare_pretrained(model, weights, source, may_lack)
    report.container = container
    report.note = '; '.join(filter(None, notes))
    report.resized = resized
    refuse_misfits(report, model, given)
    own = model.state_dict()
    with torch.no_grad():
        for key in report.loaded:
            own[key].copy_(weights[key])
    info(str(report))
    return report


def drop_other_head(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Drop the head of a file if it is for another number of classes than a model's.

    Args:
        model: a classifier; of any other model nothing is dropped.
        weights: by the model's names; changed in place.

    Returns:
        What happened, for the log; '' if nothing was dropped.
    """
    own = model.state_dict().get('head.weight')
    given = weights.get('head.weight')
    if own is None or given is None or own.shape == given.shape:
        return ''
    del weights['head.weight']
    weights.pop('head.bias', None)
    return f'the head is new, the file has {len(given)} classes and the model {len(own)}'


def adapt_stem(model: nn.Module, weights: dict[str, Tensor]) -> str:
    """Convert the first convolution of a file to the number of input channels of a model.

    Args:
        model: backbone or classifier.
        weights: by the model's names; changed in place.

    Returns:
        What happened, for the log; '' if the numbers of channels are equal.
    """
    own = model.state_dict()
    for key in (STEM_WEIGHT, f'backbone.{STEM_WEIGHT}'):
        if key not in own or key not in weights or weights[key].ndim != 4:
            continue
        given = weights[key].shape[1]
        channels = own[key].shape[1]
        if given != channels:
            weights[key] = convert_channels(weights[key], channels)
            name = key.removesuffix('.weight')
            return f'{name} converted from {given} to {channels} input channels'
    return ''


def convert_channels(weight: Tensor, channels: int) -> Tensor:
    """Convert a convolution [O, I, k, k] to another number of input channels, as timm does.

    One channel gets the sum over all, more of them repeat the first ones, scaled to the same sum of
    outputs for equal channels. timm 1.0.21 converts from three channels only.

    Args:
        weight: any floating point dtype; the sum is taken in float32.
        channels: of the images.
    """
    given = weight.shape[1]
    values = weight.float()
    if channels == 1:
        return values.sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = values.repeat(1, math.ceil(channels / given), 1, 1)[:, :channels]
    return (repeated * (given / channels)).to(weight.dtype)


def shown_source(name: str | Path, path: Path) -> str:
    """Return the name of a file for messages; with its path for a name that does not tell it."""
    if str(name).startswith('mmpola://'):
        return f'{name} ({path})'
    return str(name)


def rename(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a file's tensors to the names in a model, or in the backbones inside of it."""
    if isinstance(model, RenamesWeights):
        return with_versions(model.rename_weights(weights), weights)
    renamed = dict(weights)
    for prefix, backbone in _inner_models(model):
        inside = {}
        for name in list(renamed):
            if name.startswith(prefix):
                inside[name.removeprefix(prefix)] = renamed.pop(name)
        for name, x in backbone.rename_weights(inside).items():
            renamed[prefix + name] = x
    return with_versions(renamed, weights)


def _inner_models(model: nn.Module) -> list[tuple[str, RenamesWeights]]:
    """Return (prefix of its tensors, module) of every `RenamesWeights` inside of another model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, RenamesWeights) and module is not model:
            found.append((f'{name}.', module))
    return found


def with_versions(
    tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return tensors with the versions of modules that torch saved with the weights they are from.

    Load hooks tell by the versions which names a file uses.
    """
    versioned = OrderedDict(tensors)
    versions = getattr(weights, '_metadata', None)
    if versions is not None:
        vars(versioned)['_metadata'] = versions
    return versioned


def adapt_tables(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Resize the position tables of a file to the grids and windows of a model.

    Args:
        model: backbone or classifier.
        weights: by the model's names; changed in place.

    Returns:
        The names of the resized tables, with both shapes.
    """
    tables = position_tables(model)
    resized = []
    for key, target in model.state_dict().items():
        x = weights.get(key)
        if x is None or not is_plain(x) or x.shape == target.shape or not can_load(x, target):
            continue
        table = _resize_table(key, x, target, tables)
        if table.shape != x.shape:
            resized.append(f'{key} {list(x.shape)} -> {list(table.shape)}')
            weights[key] = table
    return resized


def compare(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    may_lack: tuple[str, ...] = (),
    may_drop: tuple[str, ...] | None = None,
) -> LoadReport:
    """Compare tensors with the state dict of a model, without loading them.

    Entries of quantised models that are no plain tensors count as fitting.

    Args:
        model: gives the names and shapes.
        weights: tensors that `rename` has renamed.
        source: the file, for messages.
        may_lack: prefixes of tensors that the file need not have. The counters of BatchNorm layers
            may always be missing, as in torch.
        may_drop: prefixes of tensors that are dropped if the model does not have the part that they
            belong to; None: those of the backbones inside of the model, which do not build every
            stage and norm.

    Raises:
        CheckpointError: a tensor is not dense, or has a dtype that cannot be loaded into the
            model's tensor.
    """
    if may_drop is None:
        may_drop = tuple(prefix for prefix, _ in _inner_models(model))
    expected = model.state_dict()
    parts = {_part_of_model(key) for key in expected}
    report = LoadReport(source, type(model).__name__)
    for key, x in weights.items():
        if key in expected:
            _compare_tensor(report, key, x, expected[key])
        elif key.startswith(may_drop) and _part_of_model(key) not in parts:
            report.dropped.append(key)
        else:
            report.unknown.append(_with_shape(key, x))
    for key, target in expected.items():
        if key in weights:
            continue
        if key.startswith(may_lack):
            report.new.append(key)
        elif not key.endswith(BATCH_NORM_COUNTER):
            report.missing.append(_with_shape(key, target))
    return report


def compare_pretrained(
    model: RenamesWeights,
    weights: Mapping[str, Tensor],
    source: str,
    may_lack: tuple[str, ...] = (),
) -> LoadReport:
    """Compare weights to start from: parts that the model does not have are dropped.

    See `compare`. The file need not have the model's `optional_prefixes()` either.
    """
    return compare(model, weights, source, model.optional_prefixes() + may_lack, may_drop=('',))


def _compare_tensor(report: LoadReport, key: str, x: Tensor, target: Tensor) -> None:
    """Add a file's tensor to the lists of a report."""
    if not is_plain(x) or not is_plain(target):
        report.loaded.append(key)
        return
    if not can_load(x, target):
        rule = f'expected a dense tensor of {listed(_dtypes(target))}'
        raise CheckpointError(f'{report.source}: {key}: {rule}, got {x.layout} of {x.dtype}')
    if x.shape == target.shape:
        report.loaded.append(key)
    else:
        shapes = f'expected {list(target.shape)}, got {list(x.shape)}'
        report.wrong_shape.append(f'{key} {shapes}{_class_count_hint(key, target, x)}')
    finite = torch.isfinite(x)
    if not finite.all():
        count = int((~finite).sum())
        report.not_finite.append(f'{key} has {count} NaN or infinite values')


def is_plain(x: Any) -> bool:
    """Whether an entry of a state dict is an ordinary tensor, which can be compared with another.

    Quantised models also have tensors of other classes, tuples and dtypes; torch loads those.
    """
    if not isinstance(x, Tensor) or x.is_quantized:
        return False
    return x.is_nested or type(x) in (Tensor, nn.Parameter)


def _with_shape(key: str, x: Any) -> str:
    """Return the name of an entry of a state dict, with the shape of a tensor."""
    if not isinstance(x, Tensor):
        return key
    return f'{key} {list(x.shape)}'


def _part_of_model(key: str) -> str:
    """Return the part of a model that a tensor belongs to.

    A file's tensors in parts that the model has must fit; others are dropped.
    """
    names = key.removeprefix('backbone.').split('.')
    if names[0] in ('stages', 'norms'):  # some stages, and their norms, may not be built
        return '.'.join(names[:2])
    return names[0]


def can_load(x: Tensor, target: Tensor) -> bool:
    """Whether a plain tensor is dense and has a dtype that can be loaded into a target."""
    return x.layout == torch.strided and not x.is_nested and x.dtype in _dtypes(target)


def _dtypes(target: Tensor) -> tuple[torch.dtype, ...]:
    """Return the dtypes that can be loaded into a target."""
    if target.is_floating_point():
        return FLOAT_DTYPES
    return (target.dtype,)


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
