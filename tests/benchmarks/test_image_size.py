"""The suite `image_size` on images of milliseconds, and its figure."""

import json

import pytest

from benchmarks import measure, networks, report

OURS, THEIRS = ('Pola-PVT-T', 'Pola-Swin-T'), ('PVT-T', 'Swin-T')


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(networks, 'IMAGE_SIZES', [(32, 32), (32, 64)])
    monkeypatch.setattr(
        measure, 'peak_bytes', lambda run, device: 4096
    )  # smaller than what can be measured


def test_a_row_per_size_compares_each_backbone_with_its_sibling():
    rows = list(networks.image_size('cpu', 1, ['mmdet']))
    assert [(row['case'], row['pixels']) for row in rows] == [('32x32', 1024), ('32x64', 2048)]
    for row in rows:
        assert set(row['seconds']) == set(row['bytes']) == {*OURS, *THEIRS}
        for ours, theirs in zip(OURS, THEIRS, strict=True):
            assert (
                row[f'{theirs} over {ours}, time'] == row['seconds'][theirs] / row['seconds'][ours]
            )
            assert row[f'{ours} over {theirs}, peak memory'] == 1.0


def test_without_mmdet_its_columns_say_so():
    (row, _) = networks.image_size('cpu', 1, [])
    assert set(row['seconds']) == set(OURS)
    assert (
        row['PVT-T over Pola-PVT-T, time']
        == row['Pola-Swin-T over Swin-T, peak memory']
        == 'absent'
    )


def test_the_figure_has_a_labelled_line_per_model(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report.plt, 'close', figures.append)
    rows = [
        {
            'case': f'{side}x{side}',
            'pixels': side**2,
            'seconds': dict.fromkeys((*OURS, *THEIRS), side / 1600),
            'bytes': dict.fromkeys((*OURS, *THEIRS), side * 1000000.0),
        }
        for side in (224, 512, 1600)
    ]
    path, png = tmp_path / 'image_size.json', tmp_path / 'image_size.png'
    path.write_text(json.dumps({'machine': 'cpu-2-threads', 'rows': rows}))
    report.draw_image_size(path, png)
    assert png.read_bytes().startswith(b'\x89PNG')
    axes = figures[0].axes
    assert [each.get_title(loc='left') for each in axes] == [
        'Seconds per image',
        'Peak memory per image, GB',
    ]
    for each in axes:
        assert {line.get_label() for line in each.lines} == {
            *OURS,
            'mmdet PVT-T (softmax)',
            'mmdet Swin-T (softmax)',
        }
