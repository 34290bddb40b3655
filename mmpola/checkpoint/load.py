"""Load weights into a backbone or a classifier from any supported file: all of them or none.

`fit_weights` does it in a row: `rename` gives the tensors the model's names, `adapt_stem` and
`adapt_tables` convert what depends on the images, and `compare` reports on every tensor. What fits
is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.adapt import (
    adapt_stem,
    adapt_tables,
    can_load,
    drop_other_head,
    is_plain,
    loadable_dtypes,
)
from mmpola.checkpoint.contents import find_weights, weights_note
from mmpola.checkpoint.grids import may_be_square, saved_grids, shown_grid, with_metadata
from mmpola.checkpoint.hub import other_released_files, resolve_checkpoint
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.layers import position_tables, resize_table
from mmpola.messages import info, listed

BATCH_NORM_COUNTER = 'num_batches_tracked'
"""End of the name of a buffer that old files may lack, as torch and MMEngine also permit."""


class RenamesWeights(nn.Module):
    """A model that gives tensors of files its own names, and says which of them a file may lack."""

    def rename_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Rename a file's tensors to the names in this model; foreign tensors keep any name."""
        raise NotImplementedError

    def optional_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of tensors that a pretrained file need not have: the output norms."""
        raise NotImplementedError

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Rename this model's tensors in a state dict, which may belong to an outer model.

        `load_state_dict` of torch and of MMEngine call this for every module. Under their old names
        the modules with position tables would find no grids, so renamed tables are resized here.
        """
        names = set(state_dict)
        grids = saved_grids(state_dict)
        _rename_inside(state_dict, prefix, self)
        _rename_inside(grids, prefix, self)
        for table, own in position_tables(self).items():
            name = prefix + table
            if name in grids and name not in names and math.prod(grids[name]) == math.prod(own):
                state_dict[name] = resize_table(state_dict[name], grids[name], own)
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
        kinds = {
            'missing': self.missing,
            'not finite': self.not_finite,
            'unknown': self.unknown,
            'wrong shape': self.wrong_shape,
        }
        return [f'{kind}: {listed(names)}' for kind, names in kinds.items() if names]

    def __str__(self) -> str:
        parts = [f'{self.source}: loaded {len(self.loaded)} tensors from {self.container!r}']
        if self.note:
            parts.append(self.note)
        kinds = {'resized': self.resized, 'dropped': self.dropped, 'new': self.new}
        parts += [f'{kind}: {listed(names)}' for kind, names in kinds.items() if names]
        return '; '.join(parts)


def refuse_misfits(report: LoadReport) -> None:
    """Raise a CheckpointError that lists the tensors that do not fit, if there are any.

    For a file that `mmpola://MODEL` chose by its name, the error also lists the other files.
    """
    if not report.problems:
        return
    unfit = f'{report.source}: does not fit {report.model}; nothing was loaded'
    advice = other_released_files(report.source)
    listing = '\n  '.join(report.problems)
    raise CheckpointError(f'{unfit}{advice}\n  {listing}')


def load_weights(model: RenamesWeights, name: str | Path, which: str | None = None) -> LoadReport:
    """Load a file into a model and log which tensors were loaded, resized, dropped or left.

    Takes the authors' files (`{'model': …}`), training checkpoints of mmpola, mmdet and mmseg
    (`state_dict`, with `backbone.` or `module.` prefixes), checkpoints of the authors' detectors,
    and bare state dicts. Position tables are resized to the backbone's `pretrain_img_size`, see
    `adapt_tables`. Heads and stages that the model does
    not have are dropped, and output norms that the file lacks stay as initialised. A stem of three
    channels is converted to the model's `in_channels`.

    Args:
        model: backbone or classifier.
        name: path or name of the file, see `mmpola.checkpoint.hub`.
        which: 'model' or 'ema', see `find_weights`.

    Raises:
        CheckpointError: there is no such file, it cannot be read (see `read_checkpoint`), or
            tensors are missing, unknown, of a wrong shape or dtype, not dense or not finite: the
            message names the first of each, and the model keeps its weights.
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
    note = weights_note(content, container)
    weights, report = fit_weights(
        model, given, source, stem=True, new_head=new_head, container=container, note=note
    )
    refuse_misfits(report)
    own = model.state_dict()
    with torch.no_grad():
        for key in report.loaded:
            own[key].copy_(weights[key])
    info(str(report))
    return report


def shown_source(name: str | Path, path: Path) -> str:
    """Return the name of a file for messages; with its path for a name that does not tell it."""
    if str(name).startswith('mmpola://'):
        return f'{name} ({path})'
    return str(name)


def fit_weights(
    model: nn.Module,
    given: Mapping[str, Tensor],
    source: str,
    *,
    exact: bool = False,
    stem: bool = False,
    new_head: bool = False,
    container: str = '',
    note: str = '',
) -> tuple[dict[str, Tensor], LoadReport]:
    """Rename tensors for a model, adapt them to it, and compare them with it.

    Position tables of a `RenamesWeights` are resized.

    Args:
        model: of any kind.
        given: the tensors by the names in the file.
        source: the file, for messages.
        exact: the tensors must be the model's own, see `compare`; no table is resized.
        stem: convert a stem of three channels to the model's.
        new_head: drop a head for another number of classes.
        container, note: for the report.

    Returns:
        (tensors by the model's names, those that do not fit among them; report on every tensor).

    Raises:
        CheckpointError: see `compare`.
    """
    weights = rename(model, given)
    dropped_head = ''
    if new_head:
        dropped_head = drop_other_head(model, weights)
    converted_stem = ''
    if stem:
        converted_stem = adapt_stem(model, weights)
    resized: list[str] = []
    if isinstance(model, RenamesWeights) and not exact:
        resized = adapt_tables(model, weights)
    may_lack = ('head.',) if dropped_head else ()
    report = compare(model, weights, source, exact, may_lack)
    report.container = container
    report.note = '; '.join(filter(None, (note, dropped_head, converted_stem)))
    report.resized = resized
    return weights, report


def rename(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a file's tensors to the names in a model, or in the backbones inside of it."""
    grids = _rename_entries(model, saved_grids(weights))
    return with_metadata(_rename_entries(model, weights), weights, grids)


def _rename_entries(model: nn.Module, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Rename what a dict has for the tensors of a file."""
    if isinstance(model, RenamesWeights):
        return model.rename_weights(entries)
    renamed = dict(entries)
    for prefix, backbone in _inner_models(model):
        _rename_inside(renamed, prefix, backbone)
    return renamed


def _rename_inside(entries: dict[str, Any], prefix: str, model: RenamesWeights) -> None:
    """Rename, in place, the entries that a dict has for a model under a prefix."""
    own = {}
    for name in list(entries):
        if name.startswith(prefix):
            own[name.removeprefix(prefix)] = entries.pop(name)
    for name, x in model.rename_weights(own).items():
        entries[prefix + name] = x


def _inner_models(model: nn.Module) -> list[tuple[str, RenamesWeights]]:
    """Return (prefix of its tensors, module) of every `RenamesWeights` inside of another model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, RenamesWeights) and module is not model:
            found.append((f'{name}.', module))
    return found


def compare(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    exact: bool = False,
    may_lack: tuple[str, ...] = (),
) -> LoadReport:
    """Compare tensors with the state dict of a model, without loading them.

    The counters of BatchNorm layers may be missing, as in torch. Entries of quantised models that
    are no plain tensors count as fitting.

    Args:
        model: gives the names and shapes.
        weights: tensors that `rename` has renamed.
        source: the file, for messages.
        exact: the tensors must be the model's state dict; only stages and norms that a backbone
            inside of the model does not build are dropped. Otherwise a `RenamesWeights` drops what
            belongs to parts that it does not have, and may lack its `optional_prefixes()`.
        may_lack: further prefixes of tensors that the file need not have.

    Raises:
        CheckpointError: a tensor is not dense, or has a dtype that cannot be loaded into the
            model's tensor.
    """
    may_drop = tuple(prefix for prefix, _ in _inner_models(model))
    if isinstance(model, RenamesWeights) and not exact:
        may_drop = ('',)  # every name
        may_lack += model.optional_prefixes()
    expected = model.state_dict()
    parts = {_part_of_model(key) for key in expected}
    report = LoadReport(source, type(model).__name__)
    misfits = _table_misfits(model, weights)
    for key, x in weights.items():
        if key in misfits:
            report.wrong_shape.append(misfits[key])
        elif key in expected:
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


def _table_misfits(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a line for every position table of a file that may be on another grid than ours."""
    grids = saved_grids(weights)
    lines = {}
    for key, own in position_tables(model).items():
        if key not in weights or not is_plain(weights[key]):
            continue
        x = weights[key]
        grid = grids.get(key)
        is_known = grid == own or (grid is None and not may_be_square(own))
        target = model.get_parameter(key)
        if is_known and x.shape == target.shape:
            continue
        tokens = 'a grid that the file does not name'
        if grid is not None:
            tokens = f'{shown_grid(grid)} tokens'
        lines[key] = (
            f'{key} expected {list(target.shape)} for {shown_grid(own)} tokens, got '
            f'{list(x.shape)} for {tokens} (load it into a model with the pretrain_img_size of the '
            'file, then call set_input_size)'
        )
    return lines


def _compare_tensor(report: LoadReport, key: str, x: Tensor, target: Tensor) -> None:
    """Add a file's tensor to the lists of a report."""
    if not is_plain(x) or not is_plain(target):
        report.loaded.append(key)
        return
    if not can_load(x, target):
        rule = f'expected a dense tensor of {listed(loadable_dtypes(target))}'
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


def _class_count_hint(key: str, expected: Tensor, x: Tensor) -> str:
    """Explain a wrong shape of a classifier's last layer by its number of classes."""
    if not key.startswith('head.') or expected.shape[:1] == x.shape[:1]:
        return ''
    return f' (num_classes is {len(expected)}, the file has {len(x)})'
