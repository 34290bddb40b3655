"""Initial weights from the `init_cfg` of a config: files, and the initializers of MMEngine.

A value is None, a dict or a list of dicts, as MMEngine's modules take it. A dict(type='Pretrained',
checkpoint=PATH) names a file of any format that `load_weights` reads, and perhaps, with
weights='model' or weights='ema', which weights of a file that has plain and averaged ones. All
other dicts are initializers, for which MMEngine must be installed.
"""

from __future__ import annotations

from typing import Any

from mmpola.checkpoint.contents import WEIGHTS
from mmpola.checkpoint.load import RenamesWeights, load_weights
from mmpola.layers import LinearAttention

InitCfg = dict[str, Any] | list[dict[str, Any]] | None

PRETRAINED_FORM = "dict(type='Pretrained', checkpoint=PATH)"


def check_init_cfg(init_cfg: InitCfg) -> None:
    """Raise ValueError unless every entry names a file or an initializer."""
    if init_cfg is not None and not isinstance(init_cfg, (dict, list)):
        rule = f'None, {PRETRAINED_FORM}, an initializer of MMEngine, or a list of them'
        raise ValueError(f'init_cfg: expected {rule}, got {init_cfg!r}')
    for entry in entries_of(init_cfg):
        if not isinstance(entry, dict) or 'type' not in entry:
            rule = f'{PRETRAINED_FORM} or an initializer of MMEngine'
            raise ValueError(f'init_cfg: expected {rule}, got {entry!r}')
        if is_pretrained(entry):
            unknown = entry.keys() - {'type', 'checkpoint', 'weights'}
            is_choice = entry.get('weights') in (None, *WEIGHTS)
            if unknown or 'checkpoint' not in entry or not is_choice:
                rule = f"{PRETRAINED_FORM}, perhaps with weights='model' or weights='ema'"
                raise ValueError(f'init_cfg: expected {rule}, got {entry}')


def initialize(model: RenamesWeights, init_cfg: InitCfg) -> bool:
    """Run the initializers on a model, then load the files over their weights, as MMEngine does.

    In between, gates start again as the layers' `gate_init` says: these initializers, or the
    initializers of a detector around the model, may have drawn the projections anew.

    Returns:
        Whether there was a file.

    Raises:
        CheckpointError: see `load_weights`.
    """
    initializers = []
    files = []
    for entry in entries_of(init_cfg):
        if is_pretrained(entry):
            files.append(entry)
        else:
            initializers.append(entry)
    if initializers:
        from mmengine.model import initialize as run_initializers

        run_initializers(model, initializers)
    for module in model.modules():
        if isinstance(module, LinearAttention):
            module.start_gate()
    for file in files:
        load_weights(model, file['checkpoint'], file.get('weights'))
    return len(files) > 0


def is_pretrained(entry: dict[str, Any]) -> bool:
    """Whether an entry of an `init_cfg` names a file: by MMEngine's name or its class."""
    kind = entry.get('type')
    name = getattr(kind, '__name__', str(kind))
    return name.rpartition('.')[2] in ('Pretrained', 'PretrainedInit')


def names_file(init_cfg: InitCfg) -> bool:
    """Whether an `init_cfg` names a file, perhaps beside initializers."""
    return any(is_pretrained(entry) for entry in entries_of(init_cfg))


def entries_of(init_cfg: InitCfg) -> list[dict[str, Any]]:
    """Return an `init_cfg` as a list of its entries."""
    if init_cfg is None:
        return []
    if isinstance(init_cfg, dict):
        return [init_cfg]
    return init_cfg
