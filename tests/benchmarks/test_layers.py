"""The suite `layer` on maps of few tokens, and its figure."""

import json

import pytest

from benchmarks import measure, networks, report

OURS = ('PolaAttention', 'PolaFormerPPAttention', 'PolaMultiheadAttention')


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(networks, 'SIDES', (2, 4))
    monkeypatch.setattr(networks, 'DIM', 16)
    monkeypatch.setattr(measure, 'peak_bytes', lambda run, device: 4096)


def test_a_row_per_length_and_layer():
    rows = list(networks.layer('cpu', 1, ['softmax', 'literal']))
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


def test_peers_that_are_not_asked_for_are_absent():
    rows = list(networks.layer('cpu', 1, []))
    assert [row['layer'] for row in rows] == [*OURS] * 2
    assert all(row['softmax, step'] == row['memory over softmax'] == 'absent' for row in rows)


def results(*ratios):
    """Steps of 1 s in softmax attention and of `ratios` seconds in the others, at 100, 10,000, ...
    tokens.
    """
    return [
        {
            'tokens': 100 ** (i + 1),
            'seconds': {'step': {**dict.fromkeys(report.LAYERS, ratio), 'softmax': 1.0}},
            'bytes': dict.fromkeys(report.LAYERS, 10**6),
        }
        for i, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ('ratios', 'tokens'),
    [
        ((2, 0.5), 1000),
        ((4, 0.5), 100 * 100 ** (2 / 3)),
        ((0.9, 0.5), 100),
        ((0.5, 2), None),
        ((2, 0.5, 2, 0.5), 1e7),
    ],
)
def test_the_length_from_which_on_a_layer_is_faster(ratios, tokens):
    found = report.crossing(results(*ratios), 'PolaAttention')
    assert found == (None if tokens is None else pytest.approx(tokens, rel=1e-4))


def test_the_figure_states_the_crossing(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report.plt, 'close', figures.append)
    (tmp_path / 'layer.json').write_text(json.dumps({'rows': results(2, 0.5)}))
    report.draw_layers(tmp_path / 'layer.json', tmp_path / 'layer.png')
    assert (tmp_path / 'layer.png').read_bytes().startswith(b'\x89PNG')
    labels = {line.get_label() for line in figures[0].axes[0].lines}
    assert 'PolaAttention, faster from 1,000 tokens' in labels
    assert 'nn.MultiheadAttention' in labels
