"""Collate token sequences of different lengths into a batch, cropped to its longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence


def sequence_collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pad the sequences of a batch with zeros to the length of the longest.

    Args:
        items: B items, each with `data_samples` and `inputs`: an integer tensor [n], or a pair of
            them.

    Returns:
        dict(inputs=int64 [B, N], lengths=int64 [B], data_samples=list of B). For pairs, inputs
        [2B, N] and lengths [2B] hold the B first sequences, then the B second ones.
    """
    sequences = [item['inputs'] for item in items]
    if isinstance(sequences[0], (tuple, list)):
        firsts = [pair[0] for pair in sequences]
        seconds = [pair[1] for pair in sequences]
        sequences = firsts + seconds
    return {
        'inputs': pad_sequence([sequence.long() for sequence in sequences], batch_first=True),
        'lengths': torch.tensor([len(sequence) for sequence in sequences]),
        'data_samples': [item['data_samples'] for item in items],
    }
