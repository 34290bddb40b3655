"""Convert a checkpoint for publishing: its backbone and classification head, or its whole model."""

from __future__ import annotations

import ast
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from mmengine.config import Config
from torch import Tensor

import mmpola
from mmpola.backbones import named_backbone
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import HEAD_PREFIXES, Classifier, split_head
from mmpola.backbones.weight_names import COMPUTED_BUFFERS, to_released
from mmpola.checkpoint.grids import safetensors_metadata, saved_grids, with_metadata
from mmpola.checkpoint.hub import other_released_files
from mmpola.checkpoint.load import RenamesWeights, fit_weights, rename
from mmpola.files import write_atomically
from mmpola.messages import UsageError, first_line, listed
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.config.read import complete_types
from mmpola.openmmlab.start.fit import (
    TrainingCheckpoint,
    fit_checkpoint,
    read_training_checkpoint,
)
from mmpola.zoo import NAMED

BACKBONE_PREFIX = 'backbone.'

POLARITY_AWARE = ('.power', '.s1')
"""Ends of names that only polarity-aware attention has: exponents of a PowerMap, temperatures of an
ExpMap."""

BATCH_NORM_BUFFERS = ('running_mean', 'running_var', 'num_batches_tracked')

WHOLE_MODEL_META = ('cfg', 'epoch', 'iter', 'experiment_name', 'mmengine_version')
"""Entries of a training checkpoint's `meta` that stay in the file of a whole model, as does
`dataset_meta`. Inferencers read `cfg` and `dataset_meta`."""


@dataclass
class Conversion:
    """The content of the file to write, and what the summary says about it.

    Attributes:
        state_dict: tensors under the names of an ImageClassifier, of the authors' code, or of the
            whole model.
        meta: what the weights are and where they come from.
        container: key of the source under which they were found.
        written_as: key under which the file holds them.
        whole: class of the model, if the file holds all of it.
    """

    state_dict: dict[str, Tensor]
    meta: dict[str, Any]
    container: str
    written_as: str = 'state_dict'
    whole: str | None = None


def convert(
    source: Path,
    which: str | None = None,
    backbone_only: bool = False,
    arch: str | None = None,
    metric: str | None = None,
    authors: bool = False,
) -> Conversion:
    """Read a checkpoint and select its backbone and classification head.

    Args:
        source: any file that mmpola loads.
        which: weights to take, see `find_weights`.
        backbone_only: leave out the classification head.
        arch: a name of `mmpola.zoo.NAMED`, whose model the tensors must fit; None: they are not
            compared with a model.
        metric: result of the weights, such as 'top-1 82.6'; kept in `meta`.
        authors: use the names of the released files, which the authors' code reads; needs `arch`.

    Raises:
        UsageError: the file is unreadable, has no backbone of mmpola, does not fit `arch`, or has
            values that are not finite.
    """
    checkpoint = read_training_checkpoint(source, which)
    kept = named_weights(checkpoint.weights, backbone_only)
    if not any(key.endswith(POLARITY_AWARE) for key in kept):
        raise UsageError(
            f'{source}: expected a backbone of mmpola, got {checkpoint.container!r} with '
            f'{listed(checkpoint.weights)}'
        )
    if arch is None:
        check_finite(kept, source)
    else:
        kept = verify_weights(kept, arch, source)
    written_as = 'state_dict'
    if authors:
        if arch is None:
            raise UsageError('--authors: expected --arch NAME, whose names the file gets')
        backbone_class, _ = named_backbone(arch)
        grids = _without_backbone_prefix(saved_grids(kept), backbone_class)
        kept = with_metadata(_without_backbone_prefix(kept, backbone_class), kept, grids)
        written_as = 'model'
    return Conversion(
        state_dict=kept,
        meta=meta_of_weights(source, checkpoint, arch, metric),
        container=checkpoint.container,
        written_as=written_as,
    )


def convert_whole(source: Path, which: str | None = None, metric: str | None = None) -> Conversion:
    """Read a training checkpoint and select its weights, config and classes.

    The config in the file names everything that is needed to build the model: the result is read by
    torch.load, by the inferencers of mmdet and mmseg, and by the scripts in tools/.

    Args:
        source: a training checkpoint of MMEngine, of a detector, segmenter or classifier.
        which, metric: as in `convert`.

    Raises:
        UsageError: the file is unreadable, has no config or classes, does not fit the model of its
            config, or has values that are not finite.
    """
    checkpoint = read_training_checkpoint(source, which)
    earlier = checkpoint.meta
    if not isinstance(earlier.get('cfg'), str) or not checkpoint.classes:
        raise UsageError(
            "--whole: expected a training checkpoint with its config and classes in 'meta', "
            f'got {source} with {listed(earlier) or "none"}'
        )
    model = build_model(read_config(earlier['cfg'], source))
    weights, _ = fit_checkpoint(checkpoint, model)
    meta = {key: earlier[key] for key in WHOLE_MODEL_META if key in earlier}
    meta['dataset_meta'] = {}
    for key in ('classes', 'palette'):
        value = earlier['dataset_meta'].get(key)
        if isinstance(value, (list, tuple)):  # not an array, which torch.load refuses
            meta['dataset_meta'][key] = value
    meta.update(meta_of_weights(source, checkpoint, None, metric))
    return Conversion(
        state_dict=weights,
        meta=meta,
        container=checkpoint.container,
        whole=type(model).__name__,
    )


class DictLiterals(ast.NodeTransformer):
    """Turn dict(key=value) into {'key': value}, which `ast.literal_eval` reads."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the literal of a call of dict; any other call stays."""
        self.generic_visit(node)
        names = [keyword.arg for keyword in node.keywords]
        if ast.unparse(node.func) != 'dict' or node.args or None in names:
            return node
        values = [keyword.value for keyword in node.keywords]
        return ast.Dict([ast.Constant(name) for name in names], values)


def read_config(text: str, source: Path) -> Config:
    """Read the config in a checkpoint, which MMEngine writes as assignments of plain values.

    MMEngine reads such a text by running it, so a foreign file could run code.

    Raises:
        UsageError: it has anything but assignments of plain values.
    """
    content = {}
    try:
        for statement in DictLiterals().visit(ast.parse(text)).body:
            name, _, _ = ast.unparse(statement).partition(' = ')
            content[name] = ast.literal_eval(statement.value)
    except (SyntaxError, ValueError, AttributeError) as error:
        rule = "expected a config of plain values in meta['cfg']"
        raise UsageError(f'{source}: {rule}, got {first_line(error)}') from None
    cfg = Config(content)
    complete_types(cfg)
    return cfg


def named_weights(weights: dict[str, Tensor], backbone_only: bool) -> dict[str, Tensor]:
    """Name backbone and head as in an ImageClassifier, without size-dependent buffers."""
    kept = {}
    for key, x in _with_backbone_prefix(weights, backbone_only).items():
        if not key.endswith(COMPUTED_BUFFERS):
            kept[key] = x
    grids = _with_backbone_prefix(saved_grids(weights), backbone_only)
    return with_metadata(kept, weights, grids)


def _with_backbone_prefix(entries: Mapping[str, Any], backbone_only: bool) -> dict[str, Any]:
    """Rename what a dict has for the tensors of a backbone and, perhaps, a head."""
    backbone, others = split_head(entries)
    named = {BACKBONE_PREFIX + key: x for key, x in backbone.items()}
    if 'head.weight' in others and not backbone_only:
        for key, x in others.items():
            if key.startswith(HEAD_PREFIXES):
                named[key] = x
    return named


def _without_backbone_prefix(
    entries: Mapping[str, Any], backbone: type[Backbone]
) -> dict[str, Any]:
    """Rename what a dict has for the tensors of a classifier as in the released files."""
    bare = {key.removeprefix(BACKBONE_PREFIX): x for key, x in entries.items()}
    return to_released(bare, backbone.released_names)


def check_finite(weights: dict[str, Tensor], source: Path) -> None:
    """Raise UsageError if a tensor has NaN or infinite values."""
    broken = [key for key, x in weights.items() if not torch.isfinite(x).all()]
    if broken:
        raise UsageError(
            f'{source}: NaN or infinite values in {listed(broken)}; nothing was written'
        )


def verify_weights(weights: dict[str, Tensor], arch: str, source: Path) -> dict[str, Tensor]:
    """Return the tensors of the named model by the names of an ImageClassifier, all as they are.

    Their position tables may have another grid than the model's.

    Raises:
        UsageError: they do not fit.
    """
    if arch not in NAMED:
        raise UsageError(f'--arch: expected one of {", ".join(NAMED)}, got {arch}')
    model = build_named(arch, weights)
    _, report = fit_weights(model, weights, str(source))
    if report.problems:
        advice = ''
        if isinstance(model, Classifier):
            advice = '; --backbone-only leaves out the head'
        advice += other_released_files(str(source))
        problems = '; '.join(report.problems)
        raise UsageError(f'{source}: does not fit {arch}: {problems}{advice}; nothing was written')
    renamed = rename(model, weights)
    prefix = ''
    if not isinstance(model, Classifier):
        prefix = BACKBONE_PREFIX
    grids = {prefix + key: grid for key, grid in saved_grids(renamed).items()}
    fitting = {prefix + key: renamed[key] for key in report.loaded}
    return with_metadata(fitting, renamed, grids)


def build_named(arch: str, weights: dict[str, Tensor]) -> RenamesWeights:
    """Build a named model on the meta device: a classifier if there is a head, else a backbone.

    The backbone has all output norms, which a file may lack.
    """
    backbone_class, arguments = named_backbone(arch)
    with torch.device('meta'):
        if 'head.weight' not in weights:
            return backbone_class(out_norm=True, **arguments)
        projection = None
        if 'proj.weight' in weights and backbone_class.head.projection:
            projection = len(weights['proj.weight'])
        num_classes = len(weights['head.weight'])
        return Classifier(backbone_class, num_classes, projection=projection, arguments=arguments)


def meta_of_weights(
    source: Path, checkpoint: TrainingCheckpoint, arch: str | None, metric: str | None
) -> dict[str, Any]:
    """Describe the weights for the file's `meta`.

    `metric` and `weights` of a file that was converted before are kept.
    """
    earlier: dict[str, Any] = {}
    if 'source_sha256' in checkpoint.meta:
        earlier = dict(checkpoint.meta)
    kind = earlier.get('weights', 'model')
    if checkpoint.averaged:
        kind = 'ema'
    return {
        'arch': arch,
        'source': source.name,
        'source_sha256': sha256(source.read_bytes()),
        'metric': metric or earlier.get('metric'),
        'weights': kind,
        'mmpola_version': mmpola.__version__,
    }


def sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def write_conversion(conversion: Conversion, destination: Path, half: bool = False) -> Path:
    """Save the file atomically and return its path.

    The name of a whole model gets the first eight digits of the file's SHA-256, as OpenMMLab's
    published files have. A .safetensors file has the bare tensors, and `meta` as text.

    Args:
        conversion: what to write.
        destination: a .pth or .safetensors file.
        half: write floating-point values in half precision, float16.

    Raises:
        OSError: the system refuses the write; the old file is unchanged and no partial file is
            left.
    """
    # A clone saves its own values, a view would save its whole storage.
    values = {}
    for key, x in conversion.state_dict.items():
        dtype = torch.float16 if half and x.is_floating_point() else x.dtype
        values[key] = x.detach().to(dtype, copy=True).contiguous()
    state_dict = with_metadata(values, conversion.state_dict)
    content: bytes | memoryview
    if destination.suffix == '.safetensors':
        meta = {key: str(value) for key, value in conversion.meta.items() if value is not None}
        content = safetensors.torch.save(values, meta | safetensors_metadata(state_dict))
    else:
        file = io.BytesIO()
        torch.save({conversion.written_as: state_dict, 'meta': conversion.meta}, file)
        content = file.getbuffer()
    if conversion.whole:
        digits = sha256(content)[:8]
        destination = destination.with_stem(f'{destination.stem}-{digits}')
    write_atomically(destination, content)
    return destination


def conversion_summary(conversion: Conversion, source: Path, written: Path) -> str:
    """Describe the conversion in the lines that the script prints."""
    meta = conversion.meta
    weights = 'plain'
    if meta['weights'] == 'ema':
        weights = 'averaged (EMA)'
    if conversion.whole:
        model = f'a whole {conversion.whole}, every tensor fits its config'
    elif meta['arch'] is None:
        model = 'not compared with a model; --arch NAME does so'
    else:
        model = f'{meta["arch"]}, every tensor fits'
    parameters = 0
    for key, x in conversion.state_dict.items():
        if not key.endswith(BATCH_NORM_BUFFERS):
            parameters += x.numel()
    return '\n'.join(
        [
            f'{source} -> {written}',
            f'  weights  {weights}, from {conversion.container!r}',
            f'  model    {model}',
            f'  written  {len(conversion.state_dict)} tensors, {parameters:,} parameters',
            f'  sha256   {sha256(written.read_bytes())}',
        ]
    )
