"""The suite `layer` on maps of few tokens."""

import pytest

from benchmarks import measure, networks

OURS = ('PolaAttention', 'PolaFormerPPAttention', 'PolaMultiheadAttention')


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(networks, 'SIDES', (2, 4))
    monkeypatch.setattr(networks, 'DIM', 16)
    monkeypatch.setattr(measure, 'peak_bytes', lambda run, device: 4096)


def test_a_row_per_length_and_layer():
    rows = list(networks.layer('cpu', 1))
    names = [*OURS, 'literal']
    assert [(row['tokens'], row['layer']) for row in rows] == [
        (n, name) for n in (4, 16) for name in names
    ]
    for row in rows:
        for what in ('forward', 'step'):
            times = row['seconds'][what]
            assert set(times) == {*names, 'softmax'} == set(row['bytes'])
            assert row[f'softmax, {what}'] == times['softmax'] / times[row['layer']]
        assert row['memory over softmax'] == 1.0
