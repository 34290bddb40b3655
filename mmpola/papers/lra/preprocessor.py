"""Check a batch of sequences and move it to the model's device."""

from __future__ import annotations

from typing import Any

from mmengine.model import BaseDataPreprocessor

from mmpola.messages import UsageError


class SequencePreprocessor(BaseDataPreprocessor):
    """Checks tokens and lengths before they reach the GPU.

    On a GPU, a token out of range stops the program without being named.

    Args:
        non_blocking: copy to the device without waiting for it.

    Attributes:
        vocab_size, length: number of tokens and of positions; SequenceClassifier sets them to its
            encoder's.
    """

    vocab_size: int
    length: int

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Return the batch on the model's device, with `lengths` None if there is no padding.

        Args:
            data: `inputs` int64 [B, N], `lengths` int64 [B], and `data_samples`; for pairs,
                `inputs` [2B, N] and `lengths` [2B], the B first sequences before the B second ones.
            training: unused.

        Raises:
            UsageError: a sequence is too long, or a token is out of range.
        """
        tokens = data['inputs']
        lengths = data['lengths']
        if tokens.shape[1] > self.length:
            raise UsageError(
                f'inputs: expected sequences of at most {self.length} tokens, got {tokens.shape[1]}'
            )
        lowest, highest = tokens.aminmax()
        for token in (int(lowest), int(highest)):
            if not 0 <= token < self.vocab_size:
                raise UsageError(f'inputs: expected tokens in [0, {self.vocab_size}), got {token}')
        if not (lengths < tokens.shape[1]).any():
            lengths = None
        return self.cast_data({**data, 'lengths': lengths})
