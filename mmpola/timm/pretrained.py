"""Pretrained weights in timm: the config of every model, and loading from all sources of timm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import to_2tuple
from timm.models import load_model_config_from_hf, load_state_dict_from_hf
from timm.models._hub import load_model_config_from_path, load_state_dict_from_path

from mmpola.backbones import named_backbone
from mmpola.backbones.arguments import STRIDES, token_grid
from mmpola.backbones.base import FIRST_CONV
from mmpola.checkpoint.grids import with_metadata
from mmpola.checkpoint.hub import MODELS_WITH_WEIGHTS, resolve_checkpoint
from mmpola.checkpoint.load import load_content, shown_source
from mmpola.checkpoint.safe_load import inert, read_checkpoint
from mmpola.timm.models import TimmModel

YACS = 'yacs.config.CfgNode'
"""The class of the config in the authors' files: timm reads with `weights_only=True`."""

torch.serialization.add_safe_globals([(inert(YACS), YACS)])


def pretrained_config(name: str) -> dict[str, Any]:
    """Return timm's config of a model: where its weights are, and how they were evaluated.

    Models without weights have no location, so that `timm.list_models(pretrained=True)` leaves them
    out. The location is `url`, which comes last in timm's order of sources, so that any
    source in a user's `pretrained_cfg_overlay` replaces it.
    """
    backbone, arguments = named_backbone(name)
    size = arguments.get('pretrain_img_size', 224)
    url = ''
    if name in MODELS_WITH_WEIGHTS:
        url = f'mmpola://{name}'
    stride = backbone.block_stride or STRIDES[-1]
    crop_pct = 0.875
    crop_mode = 'squash'
    if size == 384:
        crop_pct = 1.0
    elif arguments.get('arch') == 'nano':  # as configs/_base_/pretrain_nano.py evaluates it
        crop_pct = 1.0
        crop_mode = 'center'
    return {
        'url': url,
        'input_size': (3, size, size),
        'pool_size': token_grid(size, stride),
        'num_classes': 1000,
        'crop_pct': crop_pct,
        'crop_mode': crop_mode,
        'interpolation': 'bicubic',
        'mean': IMAGENET_DEFAULT_MEAN,
        'std': IMAGENET_DEFAULT_STD,
        'first_conv': f'backbone.{FIRST_CONV}',
        'classifier': 'head',
    }


def load_pretrained(model: TimmModel, cache_dir: str | Path | None = None) -> None:
    """Load the weights that `model.pretrained_cfg` names, all or none, and log what happened.

    If the source has another number of classes, the head keeps its fresh weights. If it was trained
    on images of another number of channels, the first convolution is converted.

    Args:
        model: a model of this package with its `pretrained_cfg`.
        cache_dir: folder for the download of an `hf_hub_id`; None for the Hugging Face cache.

    Raises:
        CheckpointError: there is no such file, the source cannot be downloaded or read, or does not
            fit, or the model has neither a published nor a local file; the message says what to do.
    """
    source, content = _read_source(model, cache_dir)
    load_content(model, content, source, new_head=True)


def _read_source(model: TimmModel, cache_dir: str | Path | None) -> tuple[str, Any]:
    """Return the first source of a model's config, in timm's order, and the content of its file.

    timm 1.0.21 would run what is pickled in a file without `weights_only`.
    """
    cfg = model.pretrained_cfg
    if cfg.get('state_dict'):
        return 'state_dict', cfg['state_dict']
    if cfg.get('source') == 'local-dir':
        path = Path(cfg['file'])
        weights = load_state_dict_from_path(path, weights_only=True)
        return cfg['file'], _with_grids(weights, model, partial(load_model_config_from_path, path))
    if cfg.get('file'):
        return cfg['file'], read_checkpoint(resolve_checkpoint(cfg['file']))
    if cfg.get('hf_hub_id'):
        hub_id = cfg['hf_hub_id']
        arguments: dict[str, Any] = {'cache_dir': cache_dir, 'weights_only': True}
        if cfg.get('hf_hub_filename'):
            arguments['filename'] = cfg['hf_hub_filename']
        weights = load_state_dict_from_hf(hub_id, **arguments)
        read_config = partial(load_model_config_from_hf, hub_id, cache_dir)
        return f'hf-hub:{hub_id}', _with_grids(weights, model, read_config)
    # A model without a location may have a file in checkpoints/; the error says where to put one.
    name = cfg.get('url') or f'mmpola://{cfg["architecture"]}'
    path = resolve_checkpoint(name)
    return shown_source(name, path), read_checkpoint(path)


def _with_grids(
    weights: Mapping[str, Any], model: TimmModel, read_config: Callable[[], Any]
) -> Mapping[str, Any]:
    """Add the grids of the position tables, by the size of images that a saved folder names.

    timm's loaders drop the metadata of a state dict, and `save_for_hf` writes none into a
    .safetensors file.

    Args:
        weights: the state dict of the folder.
        model: gives the names of the tables and their strides.
        read_config: timm's reader of the folder's config.json.
    """
    try:
        pretrained_cfg, _, model_args = read_config()
    except OSError:  # there is none
        return weights
    size = model_args.get('img_size') or pretrained_cfg.get('input_size', ())[1:]
    if not size:
        return weights
    grids = model.table_grids(to_2tuple(size))
    return with_metadata(weights, {}, grids)
