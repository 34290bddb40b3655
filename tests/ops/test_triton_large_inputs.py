"""The attention kernels on queries and keys whose powers and exponentials exceed the range of the
dtype.
"""

import numpy as np
import pytest
import torch

from tests.helpers.attention import (
    LEAVES,
    attend,
    draw_leaves,
    draw_rotary,
    exponential_attention,
    magnitude_of_terms,
    results,
)

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_results_are_finite_where_half_features_would_overflow(kind):
    tensors = draw_leaves(32, 40, 40, kind, torch.float16, std=30.0, position=False, batch=1)
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what, x in found.items():
        assert torch.isfinite(x).all(), what


@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.float16, 5e-3), (torch.float32, 5e-5)])
@pytest.mark.parametrize('which', ['query', 'key', 'both'])
def test_large_powers_are_exact(which, dtype, tolerance):
    """Powers of 15,000 are in float32's range, their products with a state of such keys are not
    (E8a).
    """
    tensors = draw_leaves(16, 20, 40, 'power', dtype, position=False)
    for index, x in enumerate(tensors[:2]):
        if which in (('query', 'key')[index], 'both'):
            x[:, 3] = 15000 * x[:, 3].sign()
    grad = torch.randn_like(tensors[0])
    found = results(tensors, 'power', grad)
    for what, expected in results(tensors, 'power', grad, None, 'torch', torch.float64).items():
        assert torch.isfinite(found[what]).all(), what
        # With one dominating key the output hardly depends on queries and keys: gradients cancel to
        # almost 0.
        scale = (
            expected.norm()
            if which == 'query' or what == 'o'
            else max(expected.norm(), grad.double().norm())
        )
        assert (found[what].double() - expected).norm() <= tolerance * scale, what


def test_large_powers_without_a_common_feature_have_finite_gradients():
    """The opposite-signed stream is empty; eps is the smallest normal number there, whose inverse
    overflows.
    """
    q, k, v, _, exponent, scale = draw_leaves(16, 20, 40, 'power', position=False)
    tensors = [torch.full_like(q, 1e4), torch.full_like(k, 1e4), v, None, exponent, scale]
    grad = torch.full_like(q, 8.0)
    found = results(tensors, 'power', grad)
    for what, expected in results(tensors, 'power', grad, None, 'torch', torch.float64).items():
        assert torch.isfinite(found[what]).all(), what
        assert (found[what].double() - expected).norm() <= 1e-5 * max(
            expected.norm(), grad.norm()
        ), what


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_a_key_that_is_nan_reaches_the_output(kind, monkeypatch):
    """With the NaN that hardware computes, all bits but the sign set; NumPy's would survive any
    rounding.
    """
    exp2 = np.exp2

    def on_hardware(x):
        found = exp2(x)
        return np.where(np.isnan(found), np.int32(0x7FFFFFFF).view(np.float32), found).astype(
            found.dtype
        )

    monkeypatch.setattr(np, 'exp2', on_hardware)
    tensors = draw_leaves(16, 20, 40, kind, torch.float16, position=False)
    tensors[1][0, 3, 0, 2] = float('nan')
    output = attend(tensors, kind)
    assert output[0, :, 0].isnan().any(-1).all()
    assert torch.isfinite(output[0, :, 1:]).all()


@pytest.mark.usefixtures('poisoned_memory')
@pytest.mark.parametrize(
    ('dtype', 'std', 'sum_error', 'difference_error'),
    [
        (torch.float16, 30.0, 1e-3, 1e-2),
        (torch.bfloat16, 60.0, 1e-2, 2e-2),
        (torch.float32, 60.0, 5e-5, 5e-5),
    ],
)
def test_large_exponents_are_exact(dtype, std, sum_error, difference_error):
    """exp(x) overflows float32 from x = 88: compare with unshifted float64, in several programs and
    blocks.

    The output and the gradient of the values are sums of positive weights. All other gradients are
    differences of large terms that half precision has rounded. In 30 random draws their relative
    errors reached 0.0005 and 0.006 (float16), 0.004 and 0.011 (bfloat16).
    """
    tensors = draw_leaves(32, 70, 150, 'exp', dtype, std=std, position=False, batch=1)
    tensors[1][:, 64:] *= 1.5  # larger keys in later programs, whose parts have a larger shift
    grad = torch.randn(tensors[0].shape).to(dtype)
    found = results(tensors, 'exp', grad)
    names = [name for name, x in zip(LEAVES, tensors, strict=True) if x is not None]
    leaves = [x.double().requires_grad_() for x in tensors if x is not None]
    exact = exponential_attention(*leaves)
    gradients = torch.autograd.grad(exact, leaves, grad.double())
    for what, expected in zip(('o', *names), (exact.detach(), *gradients), strict=True):
        tolerance = sum_error if what in ('o', 'v') else difference_error
        assert (found[what].double() - expected).norm() <= tolerance * expected.norm(), what


@pytest.mark.parametrize('which', ['zero query', 'zero channel', 'zero keys', 'one key'])
def test_large_exponents_next_to(which):
    tensors = draw_leaves(
        16, 20, 1 if which == 'one key' else 20, 'exp', torch.float16, std=30.0, position=False
    )
    if which == 'zero query':
        tensors[0][:, 0] = 0
    elif which == 'zero channel':  # its keys must not raise the level of the others (E13)
        tensors[0][..., 3] = 0
        tensors[1][..., 3] = 300
    elif which == 'zero keys':
        tensors[1].zero_()
    found = results(tensors, 'exp', torch.randn_like(tensors[0]))
    assert all(torch.isfinite(x).all() for x in found.values())
    expected = exponential_attention(*(x for x in tensors if x is not None))
    torch.testing.assert_close(found['o'].double(), expected, rtol=2e-3, atol=1e-2)
    if which == 'zero query':
        assert not found['o'][:, 0].any()
        assert not found['q'][:, 0].any()
    elif which == 'zero keys':
        assert not any(x.any() for x in found.values())


def test_large_exponents_with_rotary_tables():
    """Rotated pairs mix exp(30) with exp(90): outputs may overflow fp16. They are correct where
    their terms do not.
    """
    tensors, rotary = (
        draw_leaves(16, 70, 70, 'exp', torch.float16, std=30.0, position=False),
        draw_rotary(70, 16),
    )
    output = attend(tensors, 'exp', rotary).double()
    arguments = *(x for x in tensors if x is not None), rotary
    exact, terms = exponential_attention(*arguments), magnitude_of_terms(*arguments)
    representable = terms < 6e4
    assert 0.5 < representable.float().mean() < 1
    assert not output.isnan().any()
    assert ((output - exact).abs() <= 2e-3 * terms)[representable].all()  # four factors are in tf32
