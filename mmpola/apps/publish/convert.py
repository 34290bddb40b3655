"""Convert a checkpoint for publishing: its backbone and classification head, or its whole model, in a verified file."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

import mmpola
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import HEAD_PREFIXES, Classifier, split_head
from mmpola.backbones.weight_names import COMPUTED, to_released
from mmpola.backbones.zoo import NAMED
from mmpola.checkpoint.download import sha256
from mmpola.checkpoint.load import fit_weights
from mmpola.checkpoint.write import write_atomically
from mmpola.engine.checkpoint import TrainingCheckpoint, check_fits, read
from mmpola.engine.validate import build_on_meta
from mmpola.messages import UsageError, listed

PREFIX = 'backbone.'
POLARITY_AWARE = ('.power', '.s1')
"""Tensors that only polarity-aware attention has: exponents of a PowerMap, temperatures of an ExpMap."""
NO_PARAMETERS = ('running_mean', 'running_var', 'num_batches_tracked')
WHOLE_META = ('cfg', 'dataset_meta', 'epoch', 'iter', 'experiment_name', 'mmengine_version')
"""What a file of a whole model keeps of a training checkpoint's `meta`; inferencers read the first two."""


@dataclass
class Conversion:
    """The content of the file to write, and what the summary says about it.

    Attributes:
        state_dict: tensors under the names of an ImageClassifier, of the authors' code, or of the
            whole model.
        meta: what the weights are and where they come from.
        container: key of the source under which they were found.
        written_as: key under which the file holds them.
        resized: position tables whose grid differs from that of the named model.
        dropped: number of tensors left out, by part of the model.
        dropped_entries: other entries of the source.
        whole: class of the model, if the file holds all of it.
    """

    state_dict: dict[str, Tensor]
    meta: dict[str, Any]
    container: str
    written_as: str = 'state_dict'
    resized: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_entries: list[str] = field(default_factory=list)
    whole: str | None = None


def convert(
    source: Path,
    backbone_only: bool = False,
    arch: str | None = None,
    metric: str | None = None,
    authors: bool = False,
) -> Conversion:
    """Read a checkpoint and select what is published, verified against the model where its name is known.

    Args:
        source: any file that mmpola loads.
        backbone_only: leave out the classification head.
        arch: timm's name of the backbone; None: the only name that fits, if there is one.
        metric: result of the weights, such as 'top-1 82.6'; kept in `meta`.
        authors: use the names of the released files, which the authors' code reads; a named model
            must fit.

    Raises:
        UsageError: the file is unreadable, has no backbone of mmpola, does not fit `arch`, or has
            values that are not finite; or `authors`, and no named model fits.
    """
    checkpoint = read(source)
    container, weights = checkpoint.container, checkpoint.weights
    kept = named_weights(weights, backbone_only)
    if not any(key.endswith(POLARITY_AWARE) for key in kept):
        raise UsageError(
            f'{source}: expected a backbone of mmpola, got {container!r} with {listed(weights)}'
        )
    _refuse_broken(kept, source)
    arch = arch or find_arch(kept)
    resized: list[str] = []
    if arch is not None:
        kept, resized = verify(kept, arch, source)
    written = {id(x) for x in kept.values()}
    if authors:
        if arch is None:
            raise UsageError(
                f'--authors: expected weights of a named model, none of which fits {source}'
            )
        kept = to_released(
            {key.removeprefix(PREFIX): x for key, x in kept.items()}, NAMED[arch][0].released_names
        )
    meta = _meta(source, checkpoint, arch, metric)
    conversion = Conversion(
        _own_copies(kept), meta, container, 'model' if authors else 'state_dict', resized
    )
    for key, x in weights.items():
        if id(x) not in written:
            conversion.dropped[_part(key)] += 1
    if container != 'bare state dict':
        conversion.dropped_entries = sorted(
            str(key) for key in checkpoint.content if key not in (container, 'meta')
        )
    return conversion


def convert_whole(source: Path, metric: str | None = None) -> Conversion:
    """Read the training checkpoint of a detector, segmenter or classifier and select its weights, config and classes.

    The config in the file names everything that is needed to build the model: the result is read by
    torch.load, by the inferencers of mmdet and mmseg, and by the scripts in tools/.

    Args:
        source: a training checkpoint of MMEngine, with its config.
        metric: as in `convert`.

    Raises:
        UsageError: the file is unreadable, has no config or classes, does not fit the model of its
            config, or has values that are not finite.
    """
    checkpoint = read(source)
    earlier = checkpoint.meta
    if not isinstance(earlier.get('cfg'), str) or not checkpoint.classes:
        raise UsageError(
            f"--whole: expected a training checkpoint with its config and classes in 'meta', got {source} with "
            f'{listed(earlier) or "none"}'
        )
    cfg = Config.fromstring(earlier['cfg'], '.py')
    model = build_on_meta(cfg)
    check_fits(checkpoint, cfg, model)
    _refuse_broken(checkpoint.weights, source)
    meta = {key: earlier[key] for key in WHOLE_META if key in earlier}
    meta |= _meta(source, checkpoint, None, metric)
    dropped = sorted(
        str(key)
        for key in checkpoint.content
        if key not in (checkpoint.container, 'state_dict', 'meta')
    )
    return Conversion(
        _own_copies(checkpoint.weights),
        meta,
        checkpoint.container,
        dropped_entries=dropped,
        whole=type(model).__name__,
    )


def _own_copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors: a clone stores only its own values, a view would add its whole storage to the file."""
    return {key: x.detach().contiguous().clone() for key, x in weights.items()}


def _refuse_broken(weights: dict[str, Tensor], source: Path) -> None:
    if broken := [key for key, x in weights.items() if not torch.isfinite(x).all()]:
        raise UsageError(
            f'{source}: NaN or infinite values in {listed(broken)}; nothing was written'
        )


def named_weights(weights: dict[str, Tensor], backbone_only: bool) -> dict[str, Tensor]:
    """Name backbone and head as in an ImageClassifier, and leave out buffers that follow from the input size."""
    own, others = split_head(weights)
    named = {PREFIX + key: x for key, x in own.items()}
    if 'head.weight' in others and not backbone_only:
        named |= {key: x for key, x in others.items() if key.startswith(HEAD_PREFIXES)}
    return {key: x for key, x in named.items() if not key.endswith(COMPUTED)}


def find_arch(weights: dict[str, Tensor]) -> str | None:
    """Return the name whose backbone fits these tensors with the fewest tables resized; None if several or none do."""
    resized: dict[str, int] = {}
    for name in NAMED:
        backbone = backbone_on_meta(name)
        _, report = fit_weights(backbone, backbone.rename_weights(weights), name)
        if not report.problems:
            resized[name] = len(report.resized)
    best = [name for name, count in resized.items() if count == min(resized.values())]
    return best[0] if len(best) == 1 else None


@cache
def backbone_on_meta(arch: str) -> Backbone:
    """Build the backbone of that name on the meta device, with all its output norms, which a file may lack."""
    cls, arguments = NAMED[arch]
    with torch.device('meta'):
        return cls(out_norm=True, **arguments)


def verify(
    weights: dict[str, Tensor], arch: str, source: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Check that the tensors fit the named model.

    Returns:
        (the tensors of that model, as they are, by the names of an ImageClassifier, position tables
        of another grid).

    Raises:
        UsageError: they do not fit.
    """
    if arch not in NAMED:
        raise UsageError(f'--arch: expected one of {", ".join(NAMED)}, got {arch}')
    backbone = backbone_on_meta(arch)
    named = backbone.rename_weights(weights)
    _, report = fit_weights(backbone, named, str(source))
    if report.problems:
        raise UsageError(
            f'{source}: does not fit {arch}: {"; ".join(report.problems)}; nothing was written'
        )
    if 'head.weight' not in weights:
        return {PREFIX + key: named[key] for key in report.loaded}, report.resized
    cls, arguments = NAMED[arch]
    projection = weights['proj.weight'].shape[0] if 'proj.weight' in weights else None
    try:
        with torch.device('meta'):
            model = Classifier(
                cls, len(weights['head.weight']), projection=projection, arguments=arguments
            )
        named = model.rename_weights(weights)
        _, report = fit_weights(model, named, str(source))
        problems = report.problems
    except ValueError as error:
        problems = [str(error)]
    if problems:
        raise UsageError(
            f'{source}: the head does not fit {arch}: {"; ".join(problems)}; --backbone-only leaves it out; nothing '
            'was written'
        )
    return {key: named[key] for key in report.loaded}, report.resized


def _part(key: str) -> str:
    """Return the part of a model under which a dropped tensor is counted."""
    if key.endswith(COMPUTED):
        return 'size-dependent buffers'
    first, *others = key.split('.')
    return f'{PREFIX}{others[0]}' if key.startswith(PREFIX) else first


def _meta(
    source: Path, checkpoint: TrainingCheckpoint, arch: str | None, metric: str | None
) -> dict[str, Any]:
    """Describe the weights; `metric` and `weights` of a file that was converted before are kept."""
    earlier = checkpoint.meta if 'source_sha256' in checkpoint.meta else {}
    return {
        'arch': arch,
        'source': source.name,
        'source_sha256': sha256(source),
        'metric': metric or earlier.get('metric'),
        'weights': 'ema' if checkpoint.averaged else earlier.get('weights', 'model'),
        'mmpola_version': mmpola.__version__,
    }


def write(conversion: Conversion, destination: Path) -> Path:
    """Save the file atomically and return its path.

    The name of a whole model gets the first eight digits of the file's SHA-256, as OpenMMLab's
    published files have.

    Raises:
        UsageError: the system refuses the write; the old file is unchanged and no partial file is
            left.
    """
    content = io.BytesIO()  # torch.save to a file would hide why the system refused the write
    torch.save({conversion.written_as: conversion.state_dict, 'meta': conversion.meta}, content)
    if conversion.whole:
        digits = hashlib.sha256(content.getbuffer()).hexdigest()[:8]
        destination = destination.with_stem(f'{destination.stem}-{digits}')
    try:
        write_atomically(destination, content.getbuffer())
    except OSError as error:
        raise UsageError(f'{destination}: cannot be written ({error.strerror or error})') from None
    return destination


def summary(conversion: Conversion, source: Path, destination: Path) -> str:
    """Describe the conversion in the lines that the script prints."""
    state_dict, meta = conversion.state_dict, conversion.meta
    parameters = sum(x.numel() for key, x in state_dict.items() if not key.endswith(NO_PARAMETERS))
    head = (
        f'head of {len(state_dict["head.weight"])} classes'
        if 'head.weight' in state_dict
        else 'no head'
    )
    averaged = (
        'averaged (EMA)'
        if meta['weights'] == 'ema'
        else 'plain; the file has no averaged (EMA) weights'
    )
    arch = 'no named model fits: written unverified; --arch NAME lists what differs from NAME'
    if conversion.whole:
        head = f'{len(meta["dataset_meta"]["classes"])} classes'
        arch = f'a whole {conversion.whole}, every tensor fits its config'
    elif meta['arch'] is not None:
        grids = (
            f'; {len(conversion.resized)} position tables have another grid'
            if conversion.resized
            else ''
        )
        arch = f'{meta["arch"]}, every tensor fits{grids}'
    dropped = ', '.join(f'{name} ({count})' for name, count in conversion.dropped.items())
    dropped = '; '.join(part for part in (dropped, ', '.join(conversion.dropped_entries)) if part)
    before, after = (path.stat().st_size / 1e6 for path in (source, destination))
    rows = {
        'weights': f'{averaged}, from {conversion.container!r}',
        'arch': arch,
        'written': f'{len(state_dict)} tensors, {parameters:,} parameters, {head}',
        'dropped': dropped or 'nothing',
        'size': f'{before:.1f} MB -> {after:.1f} MB',
        'sha256': sha256(destination),
        'source': f'sha256 {meta["source_sha256"]}',
    }
    return '\n'.join(
        [f'{source} -> {destination}', *(f'  {name:<8} {text}' for name, text in rows.items())]
    )
