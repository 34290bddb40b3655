"""Load weights into a backbone or a classifier from any supported file: all of them or none.

`load_weights` reads top to bottom: read the file, find the weights in it, rename and fit them to
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
from mmpola.checkpoint.hub import resolve_checkpoint
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.layers import Grid, position_tables, resize_bias_table, resize_table
from mmpola.messages import info, listed

WEIGHTS = ('model', 'ema')
"""What a user may ask for in a file that has both: the plain or the averaged weights."""

WEIGHTS_HELP = (
    'which weights of a file that has both: plain (model) or averaged (ema); default: the averaged '
    'ones, but the plain ones of a file of the authors of PolaFormer++'
)
"""Help of the option `--weights` of scripts."""

AVERAGED_KEYS = ('model_ema', 'state_dict_ema')
"""Keys of averaged weights in the files of DeiT and ConvNeXt, of timm and of PolaFormer++."""

PLAIN_BESIDE_AVERAGED = 'ema_state_dict'
"""Key of the plain weights in MMEngine's files with averaged ones, which are in `state_dict`."""

BARE = 'bare state dict'
"""Stands for the key if the file holds its tensors without one."""

WRAPPER_PREFIXES = ('_orig_mod.', 'module.')
"""Prefixes that torch.compile and DistributedDataParallel add to every name."""

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
        likely: name of the model to which tensors that do not fit belong; '' if unknown.
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
    likely: str = ''

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

    def refuse_misfits(self) -> None:
        """Raise a CheckpointError that lists the problems, if tensors do not fit."""
        problems = self.problems
        if problems:
            listing = '\n  '.join(problems)
            unfit = f'{self.source}: does not fit {self.model}; nothing was loaded'
            if self.likely:
                raise CheckpointError(f'{unfit}; its tensors look like those of {self.likely}')
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
    content = read_checkpoint(path)
    container, weights = find_weights(content, path, which)
    weights = model.rename_weights(weights)
    notes = [weights_note(content, container), convert_stem(model, weights)]
    note = '; '.join(filter(None, notes))
    return load_tensors(model, weights, shown_source(name, path), container, note)


def convert_stem(model: nn.Module, weights: dict[str, Tensor]) -> str:
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


def load_tensors(
    model: RenamesWeights,
    weights: Mapping[str, Tensor],
    source: str,
    container: str,
    note: str = '',
    may_lack: tuple[str, ...] = (),
) -> LoadReport:
    """Load tensors, all or none, and log what happened.

    See `fit_weights` and `LoadReport` for the arguments.

    Raises:
        CheckpointError: tensors do not fit.
    """
    tensors, report = fit_weights(model, weights, source, may_lack)
    report.container = container
    report.note = note
    report.refuse_misfits()
    own = model.state_dict()
    with torch.no_grad():
        for key, x in tensors.items():
            own[key].copy_(x)
    info(str(report))
    return report


def find_weights(
    content: Any, source: str | Path, which: str | None = None
) -> tuple[str, dict[str, Tensor]]:
    """Find the weights in what `read_checkpoint` returned.

    Args:
        content: of the file.
        source: the file, for messages.
        which: 'model' for the plain weights, 'ema' for averaged ones. None: the averaged ones if
            there are any, as timm and MMEngine do; but the plain ones of files that PolaFormer++'s
            code writes, because the authors evaluate those and start their detectors from them.

    Returns:
        (key that holds them, tensors by name).

    Raises:
        CheckpointError: there are no such weights.
    """
    entries: Mapping[Any, Any] = {}
    if isinstance(content, Mapping):
        entries = {**content, BARE: content}
    keys = _keys_of_weights(entries, which)
    for container in keys:
        candidate = entries.get(container)
        if not isinstance(candidate, Mapping):
            continue
        found: OrderedDict[str, Tensor] = OrderedDict()
        for key, x in candidate.items():
            is_step_count = container == PLAIN_BESIDE_AVERAGED and key == 'steps'
            if isinstance(key, str) and isinstance(x, Tensor) and not is_step_count:
                found[_without_wrappers(key)] = x
        if not found:
            continue
        # The versions of modules: load hooks tell by them which names a file uses.
        versions = getattr(candidate, '_metadata', None)
        if isinstance(versions, Mapping):
            renamed = {}
            for module, value in versions.items():
                renamed[_without_wrappers(f'{module}.').removesuffix('.')] = value
            vars(found)['_metadata'] = renamed
        return container, found
    kinds = {None: 'weights', 'model': 'plain weights', 'ema': 'averaged (EMA) weights'}
    raise CheckpointError(f'{source}: no {kinds[which]} found, neither as {" nor as ".join(keys)}')


def _keys_of_weights(entries: Mapping[Any, Any], which: str | None) -> tuple[str, ...]:
    """Return the keys under which a file may hold the weights asked for, the preferred one first.

    Raises:
        CheckpointError: `which` is unknown.
    """
    if which not in (None, *WEIGHTS):
        raise CheckpointError(f'weights: expected {" or ".join(WEIGHTS)}, got {which!r}')
    if which == 'ema':
        if PLAIN_BESIDE_AVERAGED in entries:
            return ('state_dict',)
        return AVERAGED_KEYS
    if which == 'model':
        return (PLAIN_BESIDE_AVERAGED, 'state_dict', 'model', BARE)
    if 'model' in entries and 'state_dict_ema' in entries:  # as PolaFormer++'s training writes
        return ('model',)
    return (*AVERAGED_KEYS, 'state_dict', 'model', BARE)


def is_averaged(content: Mapping[str, Any], container: str) -> bool:
    """Whether the weights under a key of a file are averaged."""
    if container == 'state_dict':
        return PLAIN_BESIDE_AVERAGED in content
    return container in AVERAGED_KEYS


def weights_note(content: Mapping[str, Any], container: str) -> str:
    """Say which weights of a file with averaged ones are under a key; '' for any other file."""
    if is_averaged(content, container):
        return 'averaged (EMA) weights'
    if any(key in content for key in (*AVERAGED_KEYS, PLAIN_BESIDE_AVERAGED)):
        return 'plain weights; the file also has averaged (EMA) ones'
    return ''


def _without_wrappers(key: str) -> str:
    while key.startswith(WRAPPER_PREFIXES):  # each may wrap the other
        key = key.partition('.')[2]
    return key


def rename_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a file's tensors to the names in a model, or in the backbones inside of it."""
    if isinstance(model, RenamesWeights):
        return model.rename_weights(weights)
    renamed = dict(weights)
    for prefix, backbone in _inner_models(model):
        inside = {}
        for name in list(renamed):
            if name.startswith(prefix):
                inside[name.removeprefix(prefix)] = renamed.pop(name)
        for name, x in backbone.rename_weights(inside).items():
            renamed[prefix + name] = x
    return renamed


def _inner_models(model: nn.Module) -> list[tuple[str, RenamesWeights]]:
    """Return (prefix of its tensors, module) of every `RenamesWeights` inside of another model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, RenamesWeights) and module is not model:
            found.append((f'{name}.', module))
    return found


def fit_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    may_lack: tuple[str, ...] = (),
    exact: bool = False,
) -> tuple[dict[str, Tensor], LoadReport]:
    """Rename tensors and fit them to a model, without loading them.

    Position tables are resized, and tensors of parts that the model does not have are dropped.
    Entries of quantised models that are no plain tensors are passed on as they are.

    Args:
        model: gives the names, the shapes and the grids of the position tables.
        weights: tensors by any names that `rename_weights` knows.
        source: the file, for messages.
        may_lack: prefixes of tensors that the file need not have, in addition to the model's
            `optional_prefixes()`.
        exact: the tensors must be exactly the model's state dict; only the counters of BatchNorm
            layers may be missing, as in torch, and only stages and norms that a backbone does not
            build are dropped. This always applies to models that are not `RenamesWeights`.

    Returns:
        (tensors to load, by the model's names; report on every tensor); there are no tensors to
        load if one does not fit.

    Raises:
        CheckpointError: a tensor is not dense, or has a dtype that cannot be loaded into the
            model's tensor.
    """
    versions = getattr(weights, '_metadata', None)
    given = weights
    weights = rename_weights(model, weights)
    expected = model.state_dict()
    report = LoadReport(source, type(model).__name__)
    parts = {_part_of_model(key) for key in expected}
    adapt = False
    tables: dict[str, Grid] = {}
    may_drop = tuple(prefix for prefix, _ in _inner_models(model))
    if isinstance(model, RenamesWeights) and not exact:
        adapt = True  # drop what the model does not have, resize tables
        may_drop = ('',)  # every name
        tables = position_tables(model)
        may_lack = model.optional_prefixes() + may_lack

    fitted: OrderedDict[str, Tensor] = OrderedDict()
    if versions is not None:
        vars(fitted)['_metadata'] = versions
    for key, x in weights.items():
        if key not in expected:
            if key.startswith(may_drop) and _part_of_model(key) not in parts:
                report.dropped.append(key)
            else:
                report.unknown.append(_with_shape(key, x))
            continue
        target = expected[key]
        if not is_plain(x) or not is_plain(target):
            report.loaded.append(key)
            fitted[key] = x
            continue
        _check_kind(x, target, f'{source}: {key}')
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
            report.missing.append(_with_shape(key, target))

    if report.problems:
        fitted.clear()
        if isinstance(model, RenamesWeights) and adapt and not report.not_finite:
            report.likely = model.likely_model(given)
    return fitted, report


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


def _check_kind(x: Tensor, target: Tensor, name: str) -> None:
    """Raise CheckpointError unless a tensor is dense and can be loaded into a target."""
    allowed: tuple[torch.dtype, ...] = (target.dtype,)
    if target.is_floating_point():
        allowed = FLOAT_DTYPES
    is_dense = x.layout == torch.strided and not x.is_nested
    if not is_dense or x.dtype not in allowed:
        rule = f'expected a dense tensor of {listed(allowed)}'
        raise CheckpointError(f'{name}: {rule}, got {x.layout} of {x.dtype}')


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
