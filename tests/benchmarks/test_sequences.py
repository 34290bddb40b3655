"""The suite `sequences` on short sequences."""

import pytest
import torch

from benchmarks import measure, sequences
from benchmarks.measure import ParityError


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(sequences.BATCHES, 'cpu', {'image': 2, 'retrieval': 1})
    monkeypatch.setattr(
        measure, 'peak_bytes', lambda run, device: 4096
    )  # smaller than what can be measured
    full = sequences._batch
    monkeypatch.setattr(
        sequences,
        '_batch',
        lambda *args: (data := full(*args)) | {'inputs': data['inputs'][:, :16].clone()},
    )


def test_a_row_per_task_compares_each_attention_with_softmax():
    rows = list(sequences.sequences('cpu', 1))
    assert [(row['case'], row['tokens']) for row in rows] == [
        ('image, batch 2', 1024),
        ('retrieval, batch 1', 4096),
    ]
    for row in rows:
        speed = row['samples per second']
        assert set(speed) == set(sequences.CONFIG_OF_VARIANT)
        for name, base in sequences.RATIOS:
            assert row[f'{name} over {base}, throughput'] == pytest.approx(
                speed[name] / speed[base]
            )
            assert row[f'{name} over {base}, peak memory'] == 1.0


def test_models_of_another_shape_are_not_timed():
    models = {name: sequences._model('image', name) for name in ('softmax', 'pola')}
    models['pola'].backbone.norm = torch.nn.LayerNorm(32)
    with pytest.raises(ParityError) as raised:
        sequences.check_shapes('image', models, {})
    assert (
        str(raised.value)
        == 'image: pola and softmax differ in backbone.norm.weight, backbone.norm.bias'
    )
