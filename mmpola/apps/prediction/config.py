"""Config and arguments of the scripts that predict images: reading them, and checking that they can be used."""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path

import torch
from mmengine.config import Config
from torch import nn

from mmpola.engine.config import CHECKPOINT_HELP, add_options_argument, load_config
from mmpola.engine.validate import PREDICTED, validate_config
from mmpola.messages import UsageError

NOISE = (
    'Warning: The [a-z]+ is out of bounds',  # boxes that extend to the edge of the image
    '.*build_loss.* would be deprecated',
    'Default ..avg_non_ignore.. is False',
)
"""Patterns of OpenMMLab's warnings that are irrelevant to predictions."""

SUFFIXES = {'mmdet': ('.jpg', '.json'), 'mmseg': ('.jpg', '.png', '.json')}
"""Suffixes of the results of each scope; those of a classifier are like a detector's."""


def checked_config(args: argparse.Namespace) -> tuple[Config, nn.Module]:
    """Read the config as `load_config` does and check it; from then on, irrelevant warnings are not shown.

    Returns:
        (the config, what `validate_config` returned for it).

    Raises:
        UsageError: the config cannot be read or has a mistake, is not that of a detector, segmenter
            or classifier, or wraps its model for test-time augmentation.
    """
    for message in NOISE:
        warnings.filterwarnings('ignore', message=message)
    cfg = load_config(args)
    if not is_classifier(cfg) and cfg.get('default_scope') not in SUFFIXES:
        raise UsageError(
            f'{cfg.filename}: expected a config of a detector or segmenter (default_scope mmdet or mmseg) or of '
            f'mmpola.ImageClassifier, got default_scope {cfg.get("default_scope")}'
        )
    if 'module' in cfg.model:
        raise UsageError(
            f'{cfg.filename}: expected a config without test-time augmentation, which only tools/test.py supports; '
            'use the config that this one wraps'
        )
    return cfg, validate_config(cfg, PREDICTED)


def is_classifier(cfg: Config) -> bool:
    """Whether the config's model is an `mmpola.ImageClassifier`."""
    return cfg.get('model', {}).get('type') == 'mmpola.ImageClassifier'


def output_suffixes(cfg: Config) -> tuple[str, ...]:
    """Return the suffixes of the files that are written for each image; the JSON is last."""
    return SUFFIXES['mmdet' if is_classifier(cfg) else cfg.default_scope]


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which model predicts: config, checkpoint, --device and --cfg-options."""
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    add_options_argument(parser)


def add_files_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which images are read and where results are written: images, --out, --overwrite."""
    parser.add_argument(
        'images', nargs='+', help='image files, folders (searched recursively) or patterns'
    )
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite results of an earlier run'
    )


def add_score_argument(parser: argparse.ArgumentParser) -> None:
    """Add --score-thr, the lowest score of a detection, and refuse a value that is no score."""
    parser.add_argument(
        '--score-thr', type=_score, default=0.3, help='lowest score of a detection (default: 0.3)'
    )


def _score(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        raise UsageError(f'--score-thr: expected a number in [0, 1], got {text}')
    return score


def check_device(name: str | None) -> str:
    """Return the name of an available device; None means a GPU if there is one, else the CPU.

    Raises:
        UsageError: torch does not know the device, or there is no GPU of this number.
    """
    name = name or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device: {name}: {str(error).splitlines()[0]}') from None
    return name
