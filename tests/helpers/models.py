"""Small models, their checkpoints under other names, and a count of what a step launches."""

from collections import UserList
from functools import cache, partial

import torch
from mmengine.registry import MODELS
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mmpola.backbones import PolaPVTv2
from mmpola.backbones.classifier import Classifier
from tests.helpers.configs import SMALL_ARCHS, WIDTHS
from tests.helpers.processes import run_script

SWIN = {
    'arch': {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)},
    'img_size': 64,
}
PLUS = {'arch': SMALL_ARCHS['mmpola.PolaFormerPP'], 'projection': 16}
SMALL = {
    'pola_pvt_tiny': {
        'arch': WIDTHS,
        'img_size': 64,
        'pola_sr_ratios': (2, 2, 1, 1),
        'attn_types': 'LLLS',
    },
    'pola_pvt_v2_b0': {'arch': WIDTHS, 'img_size': 64},
    'pola_swin_tiny': SWIN,
    'pola_deit_tiny': {'arch': {'embed_dims': 16, 'depth': 4, 'num_heads': 2}, 'img_size': 64},
    'polaformer_pp_b0': PLUS,
}


def images(*shape):
    """Images of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


ARCH = {'embed_dims': 16, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 8)}
BACKBONE = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'pretrain_img_size': 64, 'drop_path_rate': 0.0}


def classifier(**arguments):
    return MODELS.build(
        {'type': 'mmpola.ImageClassifier', 'backbone': BACKBONE, 'num_classes': 5, **arguments}
    )


def save(content, path):
    torch.save(content, path)
    return path


def run_convert(*arguments):
    """Run the script in this process and return its exit status."""
    return run_script('convert_checkpoint', *arguments)


assert_same = partial(assert_close, rtol=0, atol=0)
"""Compare tensors, or dicts of them, bit for bit."""


def authors_names(weights):
    return {key.removeprefix('backbone.'): x for key, x in weights.items()}


@cache
def named():
    """Return the weights of a named model that is small enough, with a head of 10 classes."""
    torch.manual_seed(1)
    return Classifier(PolaPVTv2, 10, arguments={'arch': 'b0'}).state_dict()


class OneLayer(nn.Module):
    """A linear attention layer on maps [1, C, h, w]."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    @property
    def conv(self):
        """The layer's depth-wise convolution."""
        if hasattr(self.layer, 'lepe'):
            return self.layer.lepe
        return self.layer.dwc

    def forward(self, maps):
        return self.layer(maps)


VIEWS = {
    '_conj', '_unsafe_view', 'alias', 'as_strided', 'detach', 'empty', 'empty_like',
    'empty_strided', 'expand', 'new_empty', 'new_empty_strided', 'permute', 'select', 'slice',
    'split', 'split_with_sizes', 'squeeze', 't', 'transpose', 'unbind', 'unsqueeze', 'view',
    'view_as_complex', 'view_as_real',
}  # fmt: skip
"""Operations that launch nothing."""


class Launches(UserList):
    """Inside a `with` block, a list of the names of PyTorch's operations that are no views."""

    def __enter__(self):
        launches = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                name = function._schema.name.removeprefix('aten::')
                if name not in VIEWS:
                    launches.append(name)
                return function(*args, **(kwargs or {}))

        self.mode = Mode()
        self.mode.__enter__()
        return self

    def __exit__(self, *error):
        self.mode.__exit__(*error)
