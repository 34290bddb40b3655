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


def test_the_figure_has_a_line_per_layer(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report.plt, 'close', figures.append)
    rows = []
    for tokens in (100, 10_000):
        seconds = dict.fromkeys(report.LAYERS, tokens / 1e6)
        memory = dict.fromkeys(report.LAYERS, 10**6)
        rows.append({'tokens': tokens, 'seconds': {'step': seconds}, 'bytes': memory})
    (tmp_path / 'layer.json').write_text(json.dumps({'rows': rows}))
    report.draw_layers(tmp_path / 'layer.json', tmp_path / 'layer.png')
    assert (tmp_path / 'layer.png').read_bytes().startswith(b'\x89PNG')
    labels = {line.get_label() for line in figures[0].axes[0].lines}
    assert labels == {style['label'] for style in report.LAYERS.values()}
