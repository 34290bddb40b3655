"""Compiled backbones: one graph for all image sizes, and the gradients of eager PyTorch."""

import copy
import shutil

import pytest
import torch
from torch._inductor import config as inductor

from mmpola.backbones import PolaDeiT, PolaFormerPP, PolaPVT, PolaPVTv2, PolaSwin
from tests.helpers.by_hand import others_by_hand

# Two blocks of each kind: with `with_cp` they are recorded one by one, but share constants.
PYRAMID = {
    'arch': {
        'embed_dims': (8, 8, 8, 8),
        'depths': (2, 2, 1, 1),
        'num_heads': (1, 2, 2, 2),
        'mlp_ratios': (2, 2, 2, 2),
    },
    'attn_types': 'LSLL',
    'out_indices': (0, 1),
}
PLUS = {**PYRAMID['arch'], 'layer_scale': (True,) * 4, 'layer_scale_init': (1,) * 4}
SWIN = {'embed_dims': 8, 'depths': (2, 2, 1, 1), 'num_heads': (1, 2, 2, 2)}
ONE_BLOCK = {**SWIN, 'depths': (1, 1, 1, 1)}
"""A PolaSwin without recomputed blocks needs no second block of a kind."""

DEIT = {'embed_dims': 8, 'depth': 4, 'num_heads': 2}
SMALL = {
    'PolaSwin': (PolaSwin, {**PYRAMID, 'arch': SWIN, 'window_size': 3}),
    'PolaPVT': (PolaPVT, {**PYRAMID, 'pola_sr_ratios': (2, 1, 1, 1)}),
    'PolaPVTv2': (PolaPVTv2, PYRAMID),
    'PolaFormerPP': (PolaFormerPP, {**PYRAMID, 'arch': PLUS}),
    'PolaDeiT': (PolaDeiT, {'arch': DEIT, 'attn_types': 'LLSS'}),
    'PolaDeiT deformable': (PolaDeiT, {'arch': DEIT, 'mixing': 'dcn', 'polarity': False}),
}
KINDS = ('PolaSwin', 'PolaPVT', 'PolaFormerPP', 'PolaDeiT deformable')
"""Backbones that have each attention layer; PolaPVTv2 and PolaDeiT have those of the first two."""


def gradients(model, run, x):
    model.zero_grad()
    sum(maps.square().mean() for maps in run(x)).backward()
    return [parameter.grad for parameter in model.parameters()]


def compare_training(name, backend, sizes, *, with_cp, dynamic, **changes):
    """Compare the gradients of a compiled backbone with those of eager PyTorch."""
    torch._dynamo.reset()
    cls, small = SMALL[name]
    eager = cls(**{'drop_path_rate': 0.0, **small, **changes})
    model = copy.deepcopy(eager)
    model.with_cp = with_cp
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for size in sizes:
        x = torch.randn(2, 3, *size)
        expected = gradients(eager, eager, x)
        for found, exact in zip(gradients(model, compiled, x), expected, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', others_by_hand(SMALL, KINDS))
def test_compiled_training_at_one_size(name):
    compare_training(name, 'aot_eager', [(32, 48)], with_cp=False, dynamic=False)


@pytest.mark.slow
@pytest.mark.parametrize('name', others_by_hand(SMALL, ['PolaSwin']))
def test_compiled_training_at_one_size_with_recomputed_blocks(name):
    compare_training(name, 'aot_eager', [(32, 48)], with_cp=True, dynamic=False)


@pytest.mark.slow
@pytest.mark.parametrize('name', others_by_hand(SMALL, KINDS[1:]))
def test_compiled_training_at_any_size(name):
    """With recomputed blocks, the harder case; the next test has both for a PolaSwin."""
    sizes = [(32, 48), (52, 36)]
    compare_training(name, 'eager', sizes, with_cp=True, dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize(('with_cp', 'arch'), [(False, ONE_BLOCK), (True, SWIN)])
def test_compiled_training_with_a_compiled_backward_pass_at_any_size(with_cp, arch):
    sizes = [(32, 48), (52, 36)]
    compare_training('PolaSwin', 'aot_eager', sizes, with_cp=with_cp, dynamic=True, arch=arch)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which('g++') is None, reason='Inductor needs a compiler of C++')
def test_training_compiled_by_inductor(monkeypatch):
    """A graph for each size, as `--compile` does it; one size, since a graph takes long.

    g++ takes most of the time: its code is neither optimised nor has vector instructions, which
    tests/ops/test_mix_and_gate.py has.
    """
    monkeypatch.setenv('TORCHINDUCTOR_DEBUG_COMPILE', '1')
    settings = {'with_cp': False, 'dynamic': False, 'arch': ONE_BLOCK}
    with inductor.patch({'cpp.simdlen': 1}):
        compare_training('PolaSwin', 'inductor', [(52, 36)], **settings)
