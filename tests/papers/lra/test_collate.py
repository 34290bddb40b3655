"""Batches of sequences are cropped to their longest."""

import torch
from mmengine.registry import FUNCTIONS


def item(*lengths):
    sequences = tuple(torch.arange(1, length + 1, dtype=torch.uint8) for length in lengths)
    return {'inputs': sequences if len(sequences) > 1 else sequences[0], 'data_samples': lengths}


def test_a_batch_is_as_long_as_its_longest_sequence():
    batch = FUNCTIONS.get('mmpola.sequence_collate')([item(2), item(4), item(1)])
    assert batch['inputs'].tolist() == [[1, 2, 0, 0], [1, 2, 3, 4], [1, 0, 0, 0]]
    assert batch['inputs'].dtype == batch['lengths'].dtype == torch.int64
    assert batch['lengths'].tolist() == [2, 4, 1]
    assert batch['data_samples'] == [(2,), (4,), (1,)]


def test_of_pairs_the_first_sequences_come_first():
    batch = FUNCTIONS.get('mmpola.sequence_collate')([item(2, 3), item(1, 2)])
    assert batch['lengths'].tolist() == [2, 1, 3, 2]
    assert batch['inputs'].tolist() == [[1, 2, 0], [1, 0, 0], [1, 2, 3], [1, 2, 0]]
    assert len(batch['data_samples']) == 2
