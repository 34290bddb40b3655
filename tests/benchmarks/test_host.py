"""The suite `host`: launches are counted, and the kernels are put back."""

from benchmarks import host
from mmpola.ops.triton import backend, power_kernels


def test_launches_of_a_call(monkeypatch):
    monkeypatch.setattr(host, 'CALLS', 1)
    before = backend.INTERPRETED, power_kernels.polarity_attention_power_state_kernel
    rows = {row['case']: row for row in host.host('cpu', 1, ['literal'])}
    launches = {name: (row['launches, forward'], row['launches, backward']) for name, row in rows.items()}
    assert launches == {'power map': (2, 5), 'exponential map': (2, 4), 'mix_and_gate': (2, 5)}
    for row in rows.values():
        for what, seconds in row['seconds'].items():
            assert row[f'literal, {what}'] == seconds['literal'] / seconds['ours']
            assert row[f'µs, {what}'] == round(1e6 * seconds['ours']) > 0
    assert before == (backend.INTERPRETED, power_kernels.polarity_attention_power_state_kernel)
