"""Which gradients the attention kernels compute: alone, at zero, of empty inputs, of second
order.
"""

import pytest
import torch

from tests.helpers.attention import DEVICE, LEAVES, attend, draw_leaves, results

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures('hardware_tf32')]


@pytest.mark.usefixtures('poisoned_memory')
@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_gradients_computed_alone_are_the_same(kind):
    tensors = draw_leaves(16, 20, 30, kind, heads=1, batch=1)
    grad = torch.randn_like(tensors[0])
    everything = results(tensors, kind, grad)
    for wanted in (
        ('q',),
        ('k',),
        ('v',),
        ('key_position',),
        ('parameter',),
        ('q', 'other parameter'),
    ):
        some = results(tensors, kind, grad, wanted=wanted)
        for what in wanted:
            assert torch.equal(some[what], everything[what]), (wanted, what)


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_autocast_does_not_reach_the_gradients(kind):
    tensors = draw_leaves(16, 20, 20, kind, heads=1, batch=1)
    grad = torch.randn_like(tensors[0])
    expected = results(tensors, kind, grad)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = results(tensors, kind, grad)
    assert all(torch.equal(found[what], expected[what]) for what in expected)


@pytest.mark.parametrize(('kind', 'exponent'), [('power', None), ('power', 1.001), ('exp', None)])
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32], ids=['fp16', 'fp32'])
def test_gradients_at_zero_are_zero(kind, exponent, dtype):
    tensors = draw_leaves(16, 20, 20, kind, dtype, position=False, heads=1)
    tensors[0][:, 0], tensors[1][:, 0] = 0, 0
    if exponent is not None:
        tensors[4].fill_(exponent)
    found = results(tensors, kind, torch.randn_like(tensors[0]))
    for what in ('q', 'k'):
        assert found[what][:, 0].abs().max() == 0
        assert (
            dtype == torch.float16 or found[what][:, 1:].abs().min() > 0
        )  # half precision may underflow
    assert torch.isfinite(found['parameter']).all()


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_without_epsilon_a_zero_query_gives_zero(kind):
    tensors = draw_leaves(16, 20, 20, kind, position=False)
    tensors[0][:, 0] = 0
    output = attend(tensors, kind, eps=0.0)
    assert not output[:, 0].any()
    assert torch.isfinite(output).all()


@pytest.mark.parametrize('kind', ['power', 'exp'])
def test_a_nan_in_the_incoming_gradient_is_kept(kind):
    """A gradient scaler must see it: rounding to tf32 may not turn it into a number."""
    tensors = draw_leaves(16, 20, 20, kind, torch.float16, position=False)
    grad = torch.randn_like(tensors[0])
    grad[0, 3, 1, 5] = float('nan')
    found = results(tensors, kind, grad)
    assert found['q'][0, 3, 1].isnan().all()
    assert found['q'].isnan().sum() == 16
    assert found['v'][0, :, 1, 5].isnan().all()
    for what in ('k', 'v', 'parameter'):
        assert found[what][..., 1, :].isnan().any()
        assert not found[what][..., 0, :].isnan().any()


@pytest.mark.parametrize(('batch', 'queries'), [(0, 20), (2, 0)])
def test_gradients_of_empty_inputs(batch, queries):
    tensors = draw_leaves(16, queries, 20, 'power', batch=batch)
    found = results(tensors, 'power', torch.zeros_like(tensors[0]))
    assert found['o'].shape == (batch, queries, 2, 16)
    assert all(not found[what].any() for what in LEAVES)


def test_second_derivatives_are_refused():
    tensors = draw_leaves(16, 8, 8, 'power', position=False)
    q = tensors[0].requires_grad_()
    (first,) = torch.autograd.grad(attend(tensors, 'power').sum(), q, create_graph=True)
    with pytest.raises(RuntimeError) as raised:
        first.sum().backward()
    assert str(raised.value) == "backend 'triton' has no second derivative: choose backend='torch'"


def test_batched_gradients_are_refused():
    tensors = draw_leaves(16, 8, 8, 'power', position=False)
    q = tensors[0].requires_grad_()
    output = attend(tensors, 'power')
    with pytest.raises(RuntimeError, match="choose backend='torch'"):
        torch.autograd.grad(output, q, torch.stack([output] * 2), is_grads_batched=True)
