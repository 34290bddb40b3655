"""A config's model with the weights of a checkpoint, for inference."""

from __future__ import annotations

import copy
from typing import Any

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope

from mmpola.engine.checkpoint import TrainingCheckpoint, remove_pretrained


def load_model(cfg: Config, checkpoint: TrainingCheckpoint) -> Any:
    """Build the config's model in eval mode, with the checkpoint's weights; `check_fits` has compared the two.

    The config stays as it is. SyncBN, which needs CUDA, becomes BN, and a wrapper for test-time augmentation is left
    out.
    """
    model_cfg = copy.deepcopy(cfg.model)  # DETR-like detectors change their config
    model_cfg = model_cfg.get('module', model_cfg)
    remove_pretrained(model_cfg)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    model = revert_sync_batchnorm(MODELS.build(model_cfg))
    model.load_state_dict(checkpoint.weights, strict=False)  # BatchNorm layers in old files lack their counter
    return model.eval()
