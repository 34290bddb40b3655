"""Arguments and exit status of the scripts that run the model of a config on images."""

from __future__ import annotations

import argparse
import math
import warnings

import torch
from mmengine.config import Config
from torch import nn

from mmpola.engine.config import load_config
from mmpola.engine.validate import validate_config
from mmpola.messages import UsageError

SOME_IMAGES_SKIPPED = 3
"""Exit status of a script that could not read all images."""

IRRELEVANT_WARNINGS = (
    'Warning: The [a-z]+ is out of bounds',  # boxes that extend to the edge of the image
    '.*build_loss.* would be deprecated',
    'Default ..avg_non_ignore.. is False',
)
"""Patterns of OpenMMLab's warnings that do not concern predictions."""


def load_image_config(args: argparse.Namespace) -> tuple[Config, nn.Module]:
    """Read and check the config of a detector, segmenter or classifier.

    Warnings that do not concern predictions are not shown from then on.

    Args:
        args: of a script, see `load_config`.

    Returns:
        (the config, its model on the meta device).

    Raises:
        UsageError: the config cannot be read or has a mistake, is not that of a detector, segmenter
            or classifier, or wraps its model for test-time augmentation.
    """
    for pattern in IRRELEVANT_WARNINGS:
        warnings.filterwarnings('ignore', message=pattern)
    cfg = load_config(args)
    scope = cfg.get('default_scope')
    if not is_classifier(cfg) and scope not in ('mmdet', 'mmseg'):
        raise UsageError(
            f'{cfg.filename}: expected a config of a detector or segmenter (default_scope mmdet '
            f'or mmseg) or of mmpola.ImageClassifier, got default_scope {scope}'
        )
    if 'module' in cfg.model:
        raise UsageError(
            f'{cfg.filename}: expected a config without test-time augmentation, which only '
            'tools/test.py supports; use the config that this one wraps'
        )
    return cfg, validate_config(cfg)


def is_classifier(cfg: Config) -> bool:
    """Whether the model of a config is an `mmpola.ImageClassifier`."""
    return cfg.get('model', {}).get('type') == 'mmpola.ImageClassifier'


def usable_device(name: str | None) -> str:
    """Return the name of an available device; None means a GPU if there is one, else the CPU.

    Raises:
        UsageError: torch does not know the device, or there is no GPU of this number.
    """
    if name is None:
        name = 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device: {name}: {str(error).splitlines()[0]}') from None
    return name


def score(text: str) -> float:
    """Read the value of --score-thr.

    Raises:
        UsageError: it is not a number in [0, 1].
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise UsageError(f'--score-thr: expected a number in [0, 1], got {text}')
    return value
