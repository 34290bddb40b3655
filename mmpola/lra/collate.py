"""Collate token sequences of different lengths into a batch, cropped to its longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from mmpola.registry import FUNCTIONS


@FUNCTIONS.register_module()
def sequence_collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pad the sequences of a batch with zeros to the length of the longest.

    Args:
        items: B items, each with `data_samples` and `inputs`: an integer tensor [n], or a pair of
            them.

    Returns:
        dict(inputs=int64 [B, N], lengths=int64 [B], data_samples=list of B). Of pairs, inputs [2B,
        N] and lengths [2B] hold the B first sequences, then the B second ones.
    """
    inputs = [item['inputs'] for item in items]
    if isinstance(inputs[0], (tuple, list)):
        inputs = [sequence for place in zip(*inputs, strict=True) for sequence in place]
    return {
        'inputs': pad_sequence([sequence.long() for sequence in inputs], batch_first=True),
        'lengths': torch.tensor([len(sequence) for sequence in inputs]),
        'data_samples': [item['data_samples'] for item in items],
    }
