"""Checkpoints to hand on: the backbone and the head of any checkpoint as a small, verified file."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmpola
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import HEAD_PREFIXES, Classifier
from mmpola.backbones.named import NAMED
from mmpola.checkpoint.reading import CheckpointError, read_checkpoint
from mmpola.checkpoint.weights import SIZE_DEPENDENT, Loadable, LoadReport, find_weights, fit_weights
from mmpola.messages import UsageError

PREFIX = 'backbone.'
POLARITY_AWARE = ('.attn.power', '.attn.s1')
"""Tensors that linear attention alone has: PowerMap's exponents, ExpMap's slopes. Every backbone here has some."""
NO_PARAMETERS = ('running_mean', 'running_var', 'num_batches_tracked')
AVERAGED = ('model_ema', 'state_dict_ema')


@dataclass
class Conversion:
    """What goes into the file, and what the console says of it."""

    state_dict: dict[str, Tensor]
    meta: dict[str, Any]
    container: str
    resized: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    beside: list[str] = field(default_factory=list)


def convert(
    source: Path, backbone_only: bool = False, arch: str | None = None, metric: str | None = None
) -> Conversion:
    """Read a checkpoint and keep what is to be handed on, verified where its name is known.

    Raises:
        UsageError: it is unreadable, has no backbone of mmpola, does not fit `arch`, or has values that are not finite.
    """
    try:
        content = read_checkpoint(source)
        container, weights = find_weights(content, source)
    except (CheckpointError, FileNotFoundError) as error:
        raise UsageError(str(error)) from None
    kept = named_weights(weights, backbone_only)
    if not any(key.endswith(POLARITY_AWARE) for key in kept):
        raise UsageError(f'{source}: no backbone of mmpola in it; its {container!r} holds {_some(list(weights))}')
    if broken := [key for key, x in kept.items() if not torch.isfinite(x).all()]:
        raise UsageError(f'{source}: NaN or infinite values in {_some(broken)}; nothing was written')
    arch = arch or find_arch(kept)
    resized: list[str] = []
    if arch is not None:
        report = verify(kept, arch, source)
        kept, resized = {key: kept[key] for key in report.loaded}, report.resized
    earlier = _meta(content)
    averaged = container in AVERAGED or (container == 'state_dict' and 'ema_state_dict' in content)
    meta = {
        'arch': arch,
        'source': source.name,
        'source_sha256': sha256(source),
        'metric': metric or earlier.get('metric'),
        'weights': 'ema' if averaged else earlier.get('weights', 'model'),
        'mmpola_version': mmpola.__version__,
    }
    # A clone holds its own values alone: a view would bring its whole storage into the file.
    conversion = Conversion({key: x.detach().contiguous().clone() for key, x in kept.items()}, meta, container, resized)
    for key in weights:
        if key not in kept and PREFIX + key not in kept:
            conversion.dropped[_part(key)] += 1
    if container != 'bare state dict':
        conversion.beside = sorted(str(key) for key in content if key not in (container, 'meta'))
    return conversion


def named_weights(weights: dict[str, Tensor], backbone_only: bool) -> dict[str, Tensor]:
    """Backbone and head under an ImageClassifier's names, without buffers that follow from the input size."""
    if not any(key.startswith(PREFIX) for key in weights):
        weights = {key if key.startswith(HEAD_PREFIXES) else PREFIX + key: x for key, x in weights.items()}
    prefixes = (PREFIX,) if backbone_only or 'head.weight' not in weights else (PREFIX, *HEAD_PREFIXES)
    return {key: x for key, x in weights.items() if key.startswith(prefixes) and not key.endswith(SIZE_DEPENDENT)}


def find_arch(weights: dict[str, Tensor]) -> str | None:
    """The one name whose backbone these tensors fit with the fewest tables resized; None if there is no such one."""
    resized: dict[str, int] = {}
    for name in NAMED:
        try:
            resized[name] = len(_fit(backbone_on_meta(name), weights, '').resized)
        except CheckpointError:
            continue
    best = [name for name, count in resized.items() if count == min(resized.values())]
    return best[0] if len(best) == 1 else None


@cache
def backbone_on_meta(arch: str) -> Backbone:
    """The backbone of that name with all its output norms, which a file may lack; no memory is taken."""
    cls, arguments = NAMED[arch]
    with torch.device('meta'):
        return cls(out_norm=True, **arguments)


def verify(weights: dict[str, Tensor], arch: str, source: Path) -> LoadReport:
    """What the loader makes of the tensors; `loaded` lists, by the names in `weights`, those that the model takes.

    Raises:
        UsageError: they do not fit.
    """
    if arch not in NAMED:
        raise UsageError(f'--arch: expected one of {", ".join(NAMED)}, got {arch}')
    try:
        report = _fit(backbone_on_meta(arch), weights, str(source))
    except CheckpointError as error:
        raise UsageError(f'{source}: does not fit {arch}: {_problems(error)}; nothing was written') from None
    report.loaded = [PREFIX + key for key in report.loaded]
    if 'head.weight' not in weights:
        return report
    cls, arguments = NAMED[arch]
    projection = weights['proj.weight'].shape[0] if 'proj.weight' in weights else None
    try:
        with torch.device('meta'):
            model = Classifier(cls, len(weights['head.weight']), projection=projection, arguments=arguments)
        return _fit(model, weights, str(source))
    except CheckpointError as error:
        reason = _problems(error)
    except ValueError as error:
        reason = str(error)
    raise UsageError(
        f'{source}: the head does not fit {arch}: {reason}; --backbone-only leaves it out; nothing was written'
    )


def _fit(model: Loadable, weights: dict[str, Tensor], source: str) -> LoadReport:
    report = LoadReport(source, '')
    fit_weights(model, weights, report)
    return report


def _problems(error: CheckpointError) -> str:
    return _some([line.strip() for line in str(error).splitlines()[1:]])


def _some(entries: list[str], shown: int = 3) -> str:
    more = [f'{len(entries) - shown} more'] if len(entries) > shown else []
    return ', '.join(entries[:shown] + more)


def _part(key: str) -> str:
    """The part of a model under which a dropped tensor is counted."""
    if key.endswith(SIZE_DEPENDENT):
        return 'size-dependent buffers'
    return PREFIX * key.startswith(PREFIX) + key.removeprefix(PREFIX).split('.')[0]


def _meta(content: Any) -> Mapping[str, Any]:
    """`meta` of a file that this tool wrote, else nothing: of one converted again, what was said of it stays."""
    meta = content.get('meta')
    return meta if isinstance(meta, Mapping) and 'source_sha256' in meta else {}


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_destination(source: Path, destination: Path, force: bool) -> None:
    """Raise UsageError unless a file may be written there, before the source is read."""
    if destination.is_dir():
        raise UsageError(f'{destination}: a folder; give the name of the file to write')
    if not destination.parent.is_dir():
        raise UsageError(f'{destination.parent}: no such folder to write into')
    if source.exists() and destination.exists() and source.samefile(destination):
        raise UsageError(f'{destination}: SRC and DST are the same file')
    if os.path.lexists(destination) and not force:
        raise UsageError(f'{destination}: exists already; --force writes over it')


def write(conversion: Conversion, destination: Path) -> None:
    """Save under a temporary name beside it, then rename: a reader sees the whole file or none.

    Raises:
        UsageError: the system refuses; no part of a file stays behind.
    """
    content = io.BytesIO()  # not straight into the file: torch hides why the system refused
    torch.save({'state_dict': conversion.state_dict, 'meta': conversion.meta}, content)
    temporary = destination.with_name(f'.{destination.name}.{os.getpid()}')
    try:
        with temporary.open('xb') as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, destination)
    except OSError as error:
        raise UsageError(f'{destination}: cannot be written ({error.strerror or error})') from None
    finally:
        temporary.unlink(missing_ok=True)


def summary(conversion: Conversion, source: Path, destination: Path) -> str:
    """What the console shows."""
    state_dict, meta = conversion.state_dict, conversion.meta
    parameters = sum(x.numel() for key, x in state_dict.items() if not key.endswith(NO_PARAMETERS))
    head = f'head of {len(state_dict["head.weight"])} classes' if 'head.weight' in state_dict else 'no head'
    averaged = 'averaged (EMA)' if meta['weights'] == 'ema' else 'plain, no averaged (EMA) ones are in the file'
    arch = 'none of the named ones fits: written as it is, not verified; --arch NAME tells what differs from NAME'
    if meta['arch'] is not None:
        grids = f'; {len(conversion.resized)} tables are of another grid than its own' if conversion.resized else ''
        arch = f'{meta["arch"]}, every tensor fits{grids}'
    dropped = ', '.join(f'{name} ({count})' for name, count in conversion.dropped.items())
    dropped = '; '.join(part for part in (dropped, ', '.join(conversion.beside)) if part)
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
    return '\n'.join([f'{source} -> {destination}', *(f'  {name:<8} {text}' for name, text in rows.items())])
