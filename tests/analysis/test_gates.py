"""Statistics of gates whose values are known."""

import pytest
import torch

from mmpola.analysis.gates import correlation, gate_statistics, principal_components


def test_means_and_correlations_of_each_head():
    """Head 0: the opposite-signed half is 2 minus the same-signed one. Head 1: both halves are equal."""
    same = torch.randn(50, 2, 3)
    opposite = torch.stack([2 - same[:, 0], same[:, 1]], dim=1)
    gate = torch.cat([same, opposite], dim=-1).flatten(1)[None]  # [1, 50, 2 heads x (3 + 3)]
    found = gate_statistics(gate, heads=2)
    torch.testing.assert_close(torch.from_numpy(found.mean), torch.stack([same.mean((0, 2)), opposite.mean((0, 2))]))
    torch.testing.assert_close(torch.from_numpy(found.std[0]), same.std((0, 2), correction=0))
    assert found.correlation == pytest.approx([-1, 1])
    assert found.token_correlation == pytest.approx([-1, 1])
    assert found.components.shape == (2, 50, 2)


def test_correlation_is_pearsons():
    x, y = torch.randn(2, 40, dtype=torch.float64)
    assert correlation(x, y) == pytest.approx(torch.corrcoef(torch.stack([x, y]))[0, 1].item())


def test_principal_components_of_a_plane_explain_everything():
    axes = torch.linalg.qr(torch.randn(6, 6)).Q[:2]
    plane = torch.randn(100, 2) * torch.tensor([3.0, 1.0])
    projected, explained = principal_components(plane @ axes + 5)
    assert explained.sum() == pytest.approx(1, abs=1e-5)
    assert explained[0] > explained[1]
    distances = torch.cdist(plane, plane)
    torch.testing.assert_close(torch.cdist(projected, projected), distances, rtol=1e-3, atol=1e-2)
