"""Helpers of the tests of converting checkpoints: a small classifier, a named one, the script."""

from functools import cache, partial

import torch
from mmengine.registry import MODELS
from torch.testing import assert_close

from mmpola.backbones import PolaPVTv2
from mmpola.backbones.classifier import Classifier
from tests.helpers import scripts

ARCH = {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)}
BACKBONE = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'pretrain_img_size': 64, 'drop_path_rate': 0.0}


def classifier(**arguments):
    return MODELS.build(
        {'type': 'mmpola.ImageClassifier', 'backbone': BACKBONE, 'num_classes': 5, **arguments}
    )


def save(content, path):
    torch.save(content, path)
    return path


def run(*arguments):
    """Run the script in this process and return its exit status."""
    return scripts.run('convert_checkpoint', *arguments)


assert_same = partial(assert_close, rtol=0, atol=0)
"""Compare tensors, or dicts of them, bit for bit."""


def authors_names(weights):
    return {key.removeprefix('backbone.'): x for key, x in weights.items()}


@cache
def named():
    """Return the weights of a small named model with a head of 10 classes."""
    torch.manual_seed(1)
    return Classifier(PolaPVTv2, 10, arguments={'arch': 'b0'}).state_dict()
