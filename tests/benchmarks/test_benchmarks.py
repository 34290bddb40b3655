"""The benchmarks on tiny shapes: parity is checked first, and every peer has its columns."""

import pytest
import torch

from benchmarks import measure, networks, operators, report
from benchmarks.cases import ATTENTION, Case
from benchmarks.measure import ParityError, check_parity
from benchmarks.peers import literal_attention
from benchmarks.records import table
from mmpola.ops import polarity_attention

SMALL = [Case('power', 'power', 2, 3, 5, 2, 16), Case('exp', 'exp', 1, 4, 4, 1, 8)]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(operators.ATTENTION, 'cpu', SMALL)
    monkeypatch.setattr(measure, 'peak_bytes', lambda run, device: 4096)  # too small to be seen


@pytest.mark.parametrize('case', SMALL, ids=lambda case: case.name)
def test_the_literal_equations_are_the_operator(case):
    call = operators.attention_call(case, 'cpu', torch.float64)
    expected = polarity_attention(*call.positional, **call.named)
    torch.testing.assert_close(
        literal_attention(*call.positional, **call.named), expected, rtol=1e-6, atol=1e-8
    )


def test_the_operator_is_compared_with_the_literal_equations():
    rows = list(operators.attention('cpu', 1))
    assert [row['case'] for row in rows] == ['power', 'exp']
    for row in rows:
        times = row['seconds']['step']
        assert row['literal, step'] == times['literal'] / times['ours']
        assert row['peak memory'] == 1.0


def test_without_parity_there_are_no_numbers(monkeypatch):
    wrong = lambda *args, **named: 1.01 * literal_attention(*args, **named)  # noqa: E731
    monkeypatch.setattr(operators, 'literal_attention', wrong)
    with pytest.raises(ParityError):
        list(operators.attention('cpu', 1))
    torch.backends.cuda.matmul.allow_tf32 = True  # as after the checks of benchmarks.gpu
    check_parity('none', {name: lambda: [torch.ones(2)] for name in ('ours', 'theirs')})
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_network_on_the_literal_equations_is_the_same_network(monkeypatch):
    monkeypatch.setitem(networks.SIZES, 'cpu', {(32, 64): 1})
    rows = list(networks.backbones('cpu', 1))
    assert [row['case'] for row in rows] == [
        'PolaPVT tiny, 32x64, batch 1',
        'PolaSwin tiny, 32x64, batch 1',
    ]
    assert all(row['timm Swin-T, inference'] == 'absent' for row in rows)  # it takes 224 x 224 only


def test_cases_are_the_maps_of_real_stages():
    name = 'Pola-PVT-T stage 1, 800x1333, batch 2'
    largest = next(case for case in ATTENTION['cuda'] if case.name == name)
    assert (largest.tokens, largest.heads, largest.dim) == (66800, 1, 64)


def test_a_table_has_a_column_per_key_and_no_raw_measurements():
    rows = [
        {'case': 'one', 'tokens': 3136, 'literal, step': 2.0, 'port, step': 'absent', 'seconds': {}}
    ]
    assert table(rows) == (
        '| case | tokens | literal, step | port, step |\n'
        '| --- | --- | --- | --- |\n'
        '| one | 3,136 | 2.00 | absent |'
    )


def test_the_page_shows_the_stored_results(monkeypatch):
    monkeypatch.setattr('sys.argv', ['report', '--check'])
    assert report.main() == 0


def test_the_figures_have_a_labelled_line_per_model(tmp_path, monkeypatch):
    """Of the stored results, which have a model that does not fit."""
    figures = []
    monkeypatch.setattr(report.plt, 'close', figures.append)
    results = report.RESULTS_OF_FIGURES
    report.draw_image_size(results / 'image_size.json', tmp_path / 'image_size.png')
    report.draw_layers(results / 'layer.json', tmp_path / 'layer.png')
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b'\x89PNG')
    of_sizes, of_layers = figures
    labels = {style['label'] for style in report.BACKBONES.values()}
    for axis in of_sizes.axes:
        assert labels <= {line.get_label() for line in axis.lines}
    assert '139 GB ' in [text.get_text() for text in of_sizes.axes[1].texts]
    labels = {style['label'] for style in report.LAYERS.values()}
    assert labels == {line.get_label() for line in of_layers.axes[0].lines}
