"""Convert a checkpoint for publishing: its backbone and classification head, or its whole model."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

import mmpola
from mmpola.backbones import named_backbone
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import HEAD_PREFIXES, Classifier, split_head
from mmpola.backbones.weight_names import COMPUTED_BUFFERS, to_released
from mmpola.checkpoint.download import sha256
from mmpola.checkpoint.load import fit_weights
from mmpola.checkpoint.write import write_atomically
from mmpola.engine.training_checkpoint import (
    TrainingCheckpoint,
    check_fits,
    read_training_checkpoint,
)
from mmpola.engine.validate import build_on_meta
from mmpola.messages import UsageError, listed
from mmpola.zoo import NAMED

BACKBONE_PREFIX = 'backbone.'

POLARITY_AWARE = ('.power', '.s1')
"""Ends of names that only polarity-aware attention has: exponents of a PowerMap, temperatures of an
ExpMap."""

BATCH_NORM_BUFFERS = ('running_mean', 'running_var', 'num_batches_tracked')

WHOLE_MODEL_META = (
    'cfg',
    'dataset_meta',
    'epoch',
    'iter',
    'experiment_name',
    'mmengine_version',
)
"""Entries of a training checkpoint's `meta` that stay in the file of a whole model.

Inferencers read the first two."""


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
    """Read a checkpoint, select what is published and verify it if the model's name is known.

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
    checkpoint = read_training_checkpoint(source)
    weights = checkpoint.weights
    container = checkpoint.container
    kept = named_weights(weights, backbone_only)
    if not any(key.endswith(POLARITY_AWARE) for key in kept):
        raise UsageError(
            f'{source}: expected a backbone of mmpola, got {container!r} with {listed(weights)}'
        )
    check_finite(kept, source)
    if arch is None:
        arch = find_arch(kept)
    resized: list[str] = []
    if arch is not None:
        kept, resized = verify_weights(kept, arch, source)

    dropped: Counter[str] = Counter()
    kept_ids = {id(tensor) for tensor in kept.values()}  # the names of kept tensors may be new
    for key, tensor in weights.items():
        if id(tensor) not in kept_ids:
            dropped[part_of(key)] += 1
    dropped_entries = []
    if container != 'bare state dict':
        dropped_entries = other_entries(checkpoint.content, (container, 'meta'))

    written_as = 'state_dict'
    if authors:
        if arch is None:
            raise UsageError(
                f'--authors: expected weights of a named model, none of which fits {source}'
            )
        backbone_class, _ = named_backbone(arch)
        bare = {key.removeprefix(BACKBONE_PREFIX): tensor for key, tensor in kept.items()}
        kept = to_released(bare, backbone_class.released_names)
        written_as = 'model'
    return Conversion(
        state_dict=own_copies(kept),
        meta=meta_of_weights(source, checkpoint, arch, metric),
        container=container,
        written_as=written_as,
        resized=resized,
        dropped=dropped,
        dropped_entries=dropped_entries,
    )


def convert_whole(source: Path, metric: str | None = None) -> Conversion:
    """Read a training checkpoint and select its weights, config and classes.

    The config in the file names everything that is needed to build the model: the result is read by
    torch.load, by the inferencers of mmdet and mmseg, and by the scripts in tools/.

    Args:
        source: a training checkpoint of MMEngine, of a detector, segmenter or classifier.
        metric: as in `convert`.

    Raises:
        UsageError: the file is unreadable, has no config or classes, does not fit the model of its
            config, or has values that are not finite.
    """
    checkpoint = read_training_checkpoint(source)
    earlier = checkpoint.meta
    if not isinstance(earlier.get('cfg'), str) or not checkpoint.classes:
        raise UsageError(
            "--whole: expected a training checkpoint with its config and classes in 'meta', "
            f'got {source} with {listed(earlier) or "none"}'
        )
    cfg = Config.fromstring(earlier['cfg'], '.py')
    model = build_on_meta(cfg)
    check_fits(checkpoint, cfg, model)
    check_finite(checkpoint.weights, source)
    meta = {key: earlier[key] for key in WHOLE_MODEL_META if key in earlier}
    meta.update(meta_of_weights(source, checkpoint, None, metric))
    return Conversion(
        state_dict=own_copies(checkpoint.weights),
        meta=meta,
        container=checkpoint.container,
        dropped_entries=other_entries(
            checkpoint.content, (checkpoint.container, 'state_dict', 'meta')
        ),
        whole=type(model).__name__,
    )


def named_weights(weights: dict[str, Tensor], backbone_only: bool) -> dict[str, Tensor]:
    """Name backbone and head as in an ImageClassifier, without size-dependent buffers."""
    backbone, others = split_head(weights)
    named = {BACKBONE_PREFIX + key: tensor for key, tensor in backbone.items()}
    if 'head.weight' in others and not backbone_only:
        for key, tensor in others.items():
            if key.startswith(HEAD_PREFIXES):
                named[key] = tensor
    return {key: tensor for key, tensor in named.items() if not key.endswith(COMPUTED_BUFFERS)}


def check_finite(weights: dict[str, Tensor], source: Path) -> None:
    """Raise UsageError if a tensor has NaN or infinite values."""
    broken = [key for key, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UsageError(
            f'{source}: NaN or infinite values in {listed(broken)}; nothing was written'
        )


def own_copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors: a clone saves its own values, a view would save its whole storage."""
    return {key: tensor.detach().contiguous().clone() for key, tensor in weights.items()}


def other_entries(content: Mapping[str, Any], read_entries: tuple[str, ...]) -> list[str]:
    return sorted(str(key) for key in content if key not in read_entries)


def part_of(key: str) -> str:
    """Return the part of a model under which a dropped tensor is counted."""
    if key.endswith(COMPUTED_BUFFERS):
        return 'size-dependent buffers'
    names = key.split('.')
    if key.startswith(BACKBONE_PREFIX):
        return f'{names[0]}.{names[1]}'
    return names[0]


def find_arch(weights: dict[str, Tensor]) -> str | None:
    """Return the name whose backbone fits these tensors with the fewest position tables resized.

    None if no name fits, or several fit equally well.
    """
    resized: dict[str, int] = {}
    for name in NAMED:
        backbone = backbone_on_meta(name)
        _, report = fit_weights(backbone, backbone.rename_weights(weights), name)
        if not report.problems:
            resized[name] = len(report.resized)
    fewest = min(resized.values(), default=0)
    best = [name for name, count in resized.items() if count == fewest]
    if len(best) != 1:
        return None
    return best[0]


@cache
def backbone_on_meta(arch: str) -> Backbone:
    """Build a named backbone on the meta device, with all output norms, which a file may lack."""
    backbone_class, arguments = named_backbone(arch)
    with torch.device('meta'):
        return backbone_class(out_norm=True, **arguments)


def verify_weights(
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
    renamed = backbone.rename_weights(weights)
    _, report = fit_weights(backbone, renamed, str(source))
    if report.problems:
        problems = '; '.join(report.problems)
        raise UsageError(f'{source}: does not fit {arch}: {problems}; nothing was written')
    if 'head.weight' not in weights:
        return {BACKBONE_PREFIX + key: renamed[key] for key in report.loaded}, report.resized

    backbone_class, arguments = named_backbone(arch)
    num_classes = len(weights['head.weight'])
    projection = None
    if 'proj.weight' in weights:
        projection = weights['proj.weight'].shape[0]
    try:
        with torch.device('meta'):
            classifier = Classifier(
                backbone_class, num_classes, projection=projection, arguments=arguments
            )
        renamed = classifier.rename_weights(weights)
        _, report = fit_weights(classifier, renamed, str(source))
        problems = '; '.join(report.problems)
    except ValueError as error:
        problems = str(error)
    if problems:
        raise UsageError(
            f'{source}: the head does not fit {arch}: {problems}; --backbone-only leaves it out; '
            'nothing was written'
        )
    return {key: renamed[key] for key in report.loaded}, report.resized


def meta_of_weights(
    source: Path, checkpoint: TrainingCheckpoint, arch: str | None, metric: str | None
) -> dict[str, Any]:
    """Describe the weights for the file's `meta`.

    `metric` and `weights` of a file that was converted before are kept.
    """
    earlier: Mapping[str, Any] = {}
    if 'source_sha256' in checkpoint.meta:
        earlier = checkpoint.meta
    kind = 'ema' if checkpoint.averaged else earlier.get('weights', 'model')
    return {
        'arch': arch,
        'source': source.name,
        'source_sha256': sha256(source),
        'metric': metric or earlier.get('metric'),
        'weights': kind,
        'mmpola_version': mmpola.__version__,
    }


def write_conversion(conversion: Conversion, destination: Path) -> Path:
    """Save the file atomically and return its path.

    The name of a whole model gets the first eight digits of the file's SHA-256, as OpenMMLab's
    published files have.

    Raises:
        UsageError: the system refuses the write; the old file is unchanged and no partial file is
            left.
    """
    file = io.BytesIO()  # torch.save to a path would hide why the system refused the write
    torch.save({conversion.written_as: conversion.state_dict, 'meta': conversion.meta}, file)
    content = file.getbuffer()
    if conversion.whole:
        digits = hashlib.sha256(content).hexdigest()[:8]
        destination = destination.with_stem(f'{destination.stem}-{digits}')
    try:
        write_atomically(destination, content)
    except OSError as error:
        raise UsageError(f'{destination}: cannot be written ({error.strerror or error})') from None
    return destination


def conversion_summary(conversion: Conversion, source: Path, destination: Path) -> str:
    """Describe the conversion in the lines that the script prints."""
    state_dict = conversion.state_dict
    meta = conversion.meta

    weights = 'plain; the file has no averaged (EMA) weights'
    if meta['weights'] == 'ema':
        weights = 'averaged (EMA)'

    if conversion.whole:
        arch = f'a whole {conversion.whole}, every tensor fits its config'
    elif meta['arch'] is None:
        arch = 'no named model fits: written unverified; --arch NAME lists what differs from NAME'
    else:
        arch = f'{meta["arch"]}, every tensor fits'
        if conversion.resized:
            arch += f'; {len(conversion.resized)} position tables have another grid'

    if conversion.whole:
        head = f'{len(meta["dataset_meta"]["classes"])} classes'
    elif 'head.weight' in state_dict:
        head = f'head of {len(state_dict["head.weight"])} classes'
    else:
        head = 'no head'
    parameters = 0
    for key, tensor in state_dict.items():
        if not key.endswith(BATCH_NORM_BUFFERS):
            parameters += tensor.numel()

    dropped = []
    if conversion.dropped:
        dropped.append(', '.join(f'{part} ({n})' for part, n in conversion.dropped.items()))
    if conversion.dropped_entries:
        dropped.append(', '.join(conversion.dropped_entries))

    before = source.stat().st_size / 1e6
    after = destination.stat().st_size / 1e6
    return '\n'.join(
        [
            f'{source} -> {destination}',
            f'  weights  {weights}, from {conversion.container!r}',
            f'  arch     {arch}',
            f'  written  {len(state_dict)} tensors, {parameters:,} parameters, {head}',
            f'  dropped  {"; ".join(dropped) or "nothing"}',
            f'  size     {before:.1f} MB -> {after:.1f} MB',
            f'  sha256   {sha256(destination)}',
            f'  source   sha256 {meta["source_sha256"]}',
        ]
    )
