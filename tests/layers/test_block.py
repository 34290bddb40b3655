"""The sum of a block's tokens and its branch: layer scale and stochastic depth in every dtype."""

import pytest
import torch
from timm.layers import DropPath

from mmpola.layers.block import add_branch
from tests.helpers.models import Launches

MIXED = {
    'half': (torch.float16, torch.float16),
    'bfloat16': (torch.bfloat16, torch.bfloat16),
    'autocast': (torch.float32, torch.float16),
}
"""The dtypes of the tokens and of the branch."""

EVERY_MIX = pytest.mark.parametrize('dtypes', MIXED.values(), ids=MIXED)
WITH_OR_WITHOUT_GAMMA = pytest.mark.parametrize('scale', [None, 1.0, 1e-6])


def draw(dtypes, scale, rate, batch=4):
    """Draw x and the branch [B, 5, 6], gamma [6] of a mean size, and the module of stochastic
    depth.
    """
    x, branch = (torch.randn(batch, 5, 6).to(dtype).requires_grad_() for dtype in dtypes)
    gamma = None if scale is None else (scale * (1 + torch.rand(6))).requires_grad_()
    return x, branch, gamma, DropPath(rate)


@EVERY_MIX
@WITH_OR_WITHOUT_GAMMA
@pytest.mark.parametrize('rate', [0.0, 0.5])
def test_half_precision_rounds_once(dtypes, scale, rate):
    x, branch, gamma, drop_path = draw(dtypes, scale, rate)
    torch.manual_seed(1)
    found = add_branch(x, branch, drop_path, gamma)
    torch.manual_seed(1)
    kept = drop_path(torch.ones(4, 1, 1)).double()  # 0, or 2 at a rate of 0.5
    exact = x.double() + branch.double() * (1.0 if gamma is None else gamma.double()) * kept
    resolution = torch.finfo(found.dtype).eps
    assert found.dtype == (torch.float32 if gamma is not None else dtypes[0])
    torch.testing.assert_close(found.double(), exact, rtol=resolution, atol=1e-6)
    grad = torch.randn(4, 5, 6)
    leaves = [leaf for leaf in (x, branch, gamma) if leaf is not None]
    for a, b in zip(
        torch.autograd.grad(found, leaves, grad.to(found.dtype)),
        torch.autograd.grad(exact, leaves, grad.to(found.dtype).double()),
        strict=True,
    ):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=8 * torch.finfo(dtypes[1]).eps, atol=1e-6)


@WITH_OR_WITHOUT_GAMMA
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_full_precision_keeps_every_bit(scale, dtype):
    x, branch, gamma, drop_path = draw((dtype, dtype), scale, 0.5)
    torch.manual_seed(1)
    found = add_branch(x, branch, drop_path, gamma)
    torch.manual_seed(1)
    assert torch.equal(found, x + drop_path(branch if gamma is None else branch * gamma))


@EVERY_MIX
def test_samples_are_scaled_only_if_the_module_scales_them(dtypes):
    x, branch, _, _ = draw(dtypes, None, 0.5)
    drop_path = DropPath(0.5, scale_by_keep=False)
    torch.manual_seed(1)
    found = add_branch(x, branch, drop_path)
    torch.manual_seed(1)
    torch.testing.assert_close(found, x + drop_path(branch))


@EVERY_MIX
def test_evaluation_drops_nothing(dtypes):
    x, branch, _, drop_path = draw(dtypes, None, 0.5)
    assert torch.equal(add_branch(x, branch, drop_path.eval()), x + branch)


def test_half_precision_takes_one_pass_forward_and_one_backward():
    x, branch, gamma, drop_path = draw(MIXED['autocast'], 1.0, 0.5)
    with Launches() as launches:
        output = add_branch(x, branch, drop_path, gamma.detach())
    assert launches == ['bernoulli_', 'div_', 'mul', 'addcmul']
    grad = torch.randn(4, 5, 6)
    with Launches() as launches:
        torch.autograd.grad(output, [x, branch], grad)
    assert launches == ['mul']


@pytest.mark.parametrize('rate', [0.0, 0.5])
@pytest.mark.parametrize('batch', [1, 4])
def test_second_derivatives(rate, batch):
    x, branch, gamma, drop_path = draw(MIXED['autocast'], 1.0, rate, batch)
    leaves = [x, branch, gamma]
    torch.manual_seed(1)
    output = add_branch(x, branch, drop_path, gamma)
    torch.manual_seed(1)
    kept = drop_path(torch.ones(batch, 1, 1)).double()
    exact = x.double() + branch.double() * gamma.double() * kept
    slope = torch.randn(batch, 5, 6)
    found, expected = (
        torch.autograd.grad((y * slope).sum(), leaves, create_graph=True) for y in (output, exact)
    )
    second, expected_second = (
        torch.autograd.grad(sum((d * d).sum() for d in first[1:]), [branch, gamma])
        for first in (found, expected)
    )
    for a, b in zip((*found, *second), (*expected, *expected_second), strict=True):
        torch.testing.assert_close(a, b, rtol=4e-3, atol=2e-2)


def test_gradients_may_be_batched():
    x, branch, gamma, drop_path = draw(MIXED['autocast'], 1.0, 0.5)
    output = add_branch(x, branch, drop_path, gamma)
    grads = torch.randn(3, 4, 5, 6)
    leaves = [x, branch, gamma]
    together = torch.autograd.grad(output, leaves, grads, retain_graph=True, is_grads_batched=True)
    for i, grad in enumerate(grads):
        alone = torch.autograd.grad(output, leaves, grad, retain_graph=True)
        for found, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(found[i], expected)
