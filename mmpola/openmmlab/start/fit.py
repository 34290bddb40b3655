"""Checkpoints for the model of a config: read them, compare them with it, load them into it.

MMEngine only warns about tensors that are missing, unknown or of another shape, and continues with
a partly loaded model. It looks for weights under `state_dict` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.model import revert_sync_batchnorm
from torch import Tensor, nn

from mmpola.checkpoint.contents import find_weights, is_averaged, weights_note
from mmpola.checkpoint.grids import with_metadata
from mmpola.checkpoint.hub import other_released_files, resolve_checkpoint
from mmpola.checkpoint.load import LoadReport, fit_weights, refuse_misfits
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.messages import UsageError, listed
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import predicted_classes

BACKBONE = 'backbone'


@dataclass
class TrainingCheckpoint:
    """A checkpoint that has been read.

    Attributes:
        path: of the local file.
        content: of the file.
        weights: the tensors that will be loaded into the model.
        container: key under which the file holds them.
    """

    path: str
    content: Mapping[str, Any]
    weights: dict[str, Tensor]
    container: str = 'state_dict'

    @property
    def averaged(self) -> bool:
        """Whether `weights` are EMA weights."""
        return is_averaged(self.content, self.container)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The entry `meta` of the file; empty for a bare state dict."""
        meta = self.content.get('meta')
        if not isinstance(meta, Mapping):
            return {}
        return meta

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes that it was trained on, by label; empty if the file does not say."""
        dataset = self.meta.get('dataset_meta')
        if not isinstance(dataset, Mapping):
            return ()
        classes = dataset.get('classes')
        if not isinstance(classes, (list, tuple)):
            return ()
        return classes


def read_training_checkpoint(name: str | Path, which: str | None = None) -> TrainingCheckpoint:
    """Read any file of weights that `find_weights` knows, which explains `which`.

    Raises:
        UsageError: the file does not exist, cannot be read, or has no weights.
    """
    path = resolve_checkpoint(name)
    content = read_checkpoint(path)
    container, weights = find_weights(content, path, which)
    return TrainingCheckpoint(str(path), content, weights, container)


def known_classes(name: str | Path) -> Sequence[str]:
    """Return the classes of a file of weights; empty if it names none or is in another format."""
    try:
        return read_training_checkpoint(name).classes
    except UsageError:
        return ()


def read_checkpoint_for(
    name: str | Path, model: nn.Module, which: str | None = None
) -> TrainingCheckpoint:
    """Read the weights of a config's whole model; print what was dropped, resized or averaged.

    The tensors of a backbone may have any names that `init_cfg` takes. A classifier's tables are
    resized; of other models the file must hold exactly the state dict.

    Args:
        name: of the file, see `resolve_checkpoint`.
        model: what `validate_config` returned for the config.
        which: weights to take, see `find_weights`.

    Raises:
        UsageError: see `read_training_checkpoint` and `fit_checkpoint`.
    """
    checkpoint = read_training_checkpoint(name, which)
    checkpoint.weights, report = fit_checkpoint(checkpoint, model, exact=False)
    if report.dropped or report.resized or report.note:
        print(report)
    return checkpoint


def fit_checkpoint(
    checkpoint: TrainingCheckpoint, model: nn.Module, exact: bool = True
) -> tuple[dict[str, Tensor], LoadReport]:
    """Rename the weights of a checkpoint for the config's model, and compare them with it.

    Args:
        checkpoint: what `read_training_checkpoint` returned.
        model: what `validate_config` returned.
        exact: the weights must be the model's own. Otherwise a classifier's tables are resized, and
            parts that it does not have are dropped.

    Returns:
        (the model's tensors, report on every tensor).

    Raises:
        UsageError: the file holds only a backbone, or tensors are missing, unknown, of another
            shape or not finite; the message names the first of each.
    """
    model = unwrapped(model)
    weights, report = fit_weights(
        model,
        checkpoint.weights,
        checkpoint.path,
        exact=exact,
        container=checkpoint.container,
        note=weights_note(checkpoint.content, checkpoint.container),
    )
    if report.problems and hasattr(model, BACKBONE):
        own = _model_parts(model.state_dict())
        own.remove(BACKBONE)
        given = _model_parts(checkpoint.weights)
        if own and not any(part in given for part in own):
            raise UsageError(
                f'{checkpoint.path}: expected the weights of a whole {report.model}, got none of '
                f'its {listed(own)}; training starts from the weights of a backbone by '
                "model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
                f'{other_released_files(checkpoint.path)}'
            )
    refuse_misfits(report)
    fitting = {name: weights[name] for name in report.loaded}
    return with_metadata(fitting, weights), report


def _model_parts(names: Iterable[str]) -> list[str]:
    """Return the parts of a model that tensors of these names belong to, each once."""
    return list(dict.fromkeys(name.partition('.')[0] for name in names))


def starting_weights(checkpoint: TrainingCheckpoint, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a run with `load_from` starts from, and print how many these are.

    Every tensor whose name and shape fit is taken; the line names the parts that stay as
    initialised.

    Raises:
        UsageError: no tensor of the backbone fits, or the file has NaN or infinite values.
    """
    model = unwrapped(model)
    weights, report = fit_weights(model, checkpoint.weights, checkpoint.path, exact=True)
    if not any(name.startswith(f'{BACKBONE}.') for name in report.loaded):
        raise UsageError(
            f'load_from: {checkpoint.path}: no tensor fits the backbone, the first ones are '
            f'{listed(weights, 3)}; the weights of a backbone are loaded by '
            "model.backbone.init_cfg=dict(type='Pretrained', checkpoint=…)"
            f'{other_released_files(checkpoint.path)}'
        )
    if report.not_finite:
        raise UsageError(f'load_from: {checkpoint.path}: not finite: {listed(report.not_finite)}')
    names = model.state_dict().keys()
    line = f'load_from: {checkpoint.path}: {len(report.loaded)} of {len(names)} tensors are loaded'
    new = ['.'.join(name.split('.')[:2]) for name in names if name not in set(report.loaded)]
    if new:
        line += f'; as initialised: {listed(dict.fromkeys(new))}'
    print(line)
    return {name: weights[name] for name in report.loaded}


def loads_classes(weights: Iterable[str], settings: dict[str, Any]) -> bool:
    """Whether weights of a part that predicts classes are among those that a run starts from.

    Args:
        weights: names of the tensors.
        settings: the config's model.
    """
    heads = []
    for key, _ in predicted_classes(settings):
        heads.append(key.removeprefix('model.').removesuffix('num_classes'))
    names = [name for name in weights if not name.startswith(f'{BACKBONE}.')]
    return any(name.startswith(tuple(heads)) for name in names)


def load_model(model: nn.Module, checkpoint: TrainingCheckpoint) -> Any:
    """Load a checkpoint that fits a model into it, and return the model in eval mode.

    Args:
        model: what `validate_config` returned. SyncBN, which needs CUDA, becomes BN.
        checkpoint: what `read_checkpoint_for` returned for it.
    """
    model = revert_sync_batchnorm(model)
    # Not strict: BatchNorm layers in old files lack their counter.
    unwrapped(model).load_state_dict(checkpoint.weights, strict=False)
    return model.eval()
