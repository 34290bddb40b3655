"""The suite `image_size` on images of milliseconds, and its plot."""

import json

import pytest

from benchmarks import networks, plots, report

OURS, THEIRS = ('Pola-PVT-T', 'Pola-Swin-T'), ('PVT-T', 'Swin-T')


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(networks, "IMAGE_SIZES", [(32, 32), (32, 64)])
    monkeypatch.setattr(networks, 'peak_bytes', lambda run, device: 4096)  # smaller than what can be measured


def test_a_row_per_size_compares_each_backbone_with_its_sibling():
    rows = list(networks.image_size('cpu', 1, ['mmdet']))
    assert [(row['case'], row['pixels']) for row in rows] == [('32x32', 1024), ('32x64', 2048)]
    for row in rows:
        assert set(row['seconds']) == set(row['bytes']) == {*OURS, *THEIRS}
        for ours, theirs in zip(OURS, THEIRS, strict=True):
            assert row[f'{theirs} over {ours}, time'] == row['seconds'][theirs] / row['seconds'][ours]
            assert row[f'{ours} over {theirs}, peak memory'] == 1.0


def test_without_mmdet_its_columns_say_so():
    (row, _) = networks.image_size('cpu', 1, [])
    assert set(row['seconds']) == set(OURS)
    assert row['PVT-T over Pola-PVT-T, time'] == row['Pola-Swin-T over Swin-T, peak memory'] == 'absent'


def test_the_plot_has_a_labelled_line_per_model(tmp_path):
    amounts = dict(zip((*OURS, *THEIRS), (2.0, 3.0, 9.0, 3.1), strict=True))
    rows = [
        {
            'case': f'{side}x{side}',
            'pixels': side**2,
            'seconds': {name: amount * side / 1600 for name, amount in amounts.items()},
            'bytes': {name: amount * side * 1e6 for name, amount in amounts.items()},
        }
        for side in (224, 512, 1600)
    ]
    record = {'machine': 'cpu-2-threads', 'rows': rows}
    path, png = tmp_path / 'image_size.json', tmp_path / 'image_size.png'
    path.write_text(json.dumps(record))
    report.draw(path, png)
    drawing = path.with_suffix('.svg').read_text()
    for label in (*OURS, 'mmdet PVT-T', 'mmdet Swin-T', 'Seconds per image', 'Peak memory per image, GB'):
        assert f'>{label}' in drawing
    assert png.read_bytes().startswith(b'\x89PNG')


def test_labels_move_apart_and_keep_their_order():
    assert plots.spread([5.0, 1.0], 1.0) == [5.0, 1.0]
    high, low, middle = plots.spread([2.1, 2.0, 2.05], 1.0)
    assert high - middle == pytest.approx(1.0, abs=1e-3)
    assert middle - low == pytest.approx(1.0, abs=1e-3)
    assert middle == pytest.approx(2.05, abs=0.1)
