"""The suite `image_size` on images of milliseconds."""

import pytest

from benchmarks import image_size

OURS = ('Pola-PVT-T', 'Pola-Swin-T', 'PolaFormer++ b1')
THEIRS = ('PVT-T', 'Swin-T')


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(image_size, 'SIZES', [(32, 64)])
    monkeypatch.setattr(
        image_size, 'in_own_process', lambda function, *arguments: function(*arguments)
    )
    monkeypatch.setattr(image_size, 'extra_bytes', lambda run, device: run() or 4096)


def test_a_row_compares_each_backbone_with_its_sibling():
    (row,) = image_size.image_size('cpu', 1)
    assert (row['case'], row['pixels']) == ('32x64', 2048)
    for what in image_size.PASSES:
        seconds = row['seconds'][what]
        assert set(seconds) == set(row['bytes'][what]) == {*OURS, *THEIRS}
        ratio = row[f'PVT-T over Pola-PVT-T, time, {what}']
        assert ratio == seconds['PVT-T'] / seconds['Pola-PVT-T']
        assert row[f'Pola-Swin-T over Swin-T, memory, {what}'] == 1.0


def test_what_does_not_fit_is_computed(monkeypatch):
    monkeypatch.setattr(image_size, 'SURELY_FITS', 0)
    monkeypatch.setattr(image_size, 'available_bytes', lambda device: 0)
    monkeypatch.setattr(image_size, 'SIBLINGS', {'PolaFormer++ b1': None})
    monkeypatch.setattr(image_size, 'mmdet_backbone', lambda name: None)
    (row,) = image_size.image_size('cpu', 1)
    needed = row['bytes that would be needed']
    assert row['seconds'] == {'inference': {}, 'training step': {}}
    needed_in_inference = needed['inference']['PolaFormer++ b1']
    assert 10**5 < needed_in_inference < needed['training step']['PolaFormer++ b1'] < 10**9
