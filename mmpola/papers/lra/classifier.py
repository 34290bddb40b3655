"""The classifier of the Long Range Arena that MMEngine's Runner trains and tests."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmpola.papers.lra.preprocessor import SequencePreprocessor
from mmpola.pretraining.outputs import loss_or_predictions
from mmpola.registry import MODELS


class SequenceClassifier(BaseModel):
    """A sequence encoder and a head of two layers, trained with cross entropy.

    It classifies sequences or pairs of them. Both sequences of a pair go through the same encoder;
    the head sees [a, b, a * b, a - b] of their vectors a and b.

    Args:
        backbone: config of a `SequenceEncoder`.
        num_classes: length of the logits.
        paired: classify pairs of sequences.
        hidden: hidden channels of the head.
        data_preprocessor: config of `SequencePreprocessor`, which is the default.

    Raises:
        ValueError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        num_classes: int,
        *,
        paired: bool = False,
        hidden: int = 128,
        data_preprocessor: dict[str, Any] | None = None,
    ) -> None:
        if num_classes < 1:
            raise ValueError(f'num_classes: expected a positive integer, got {num_classes}')
        super().__init__(data_preprocessor or {'type': 'mmpola.SequencePreprocessor'})
        self.backbone = MODELS.build(backbone)
        self.num_classes = num_classes
        self.paired = paired
        channels = 4 * self.backbone.dim if paired else self.backbone.dim
        self.head = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )
        if isinstance(self.data_preprocessor, SequencePreprocessor):
            self.data_preprocessor.vocab_size = self.backbone.vocab_size
            self.data_preprocessor.length = self.backbone.length

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Classify sequences.

        Args:
            inputs: tokens [B, N]; for pairs [2B, N], the B first sequences before the B second
                ones.
            lengths: [B] or [2B], the tokens of each sequence without padding; None if there is no
                padding.
            data_samples: B data samples with `gt_label`, a class index.
            mode: 'tensor', 'loss' or 'predict'; see `ImageClassifier`, which returns the same.

        Raises:
            ValueError: the mode is unknown, or data samples lack labels in mode 'loss'.
        """
        encoded = self.backbone(inputs, lengths)
        if self.paired:
            first, second = encoded.chunk(2)
            encoded = torch.cat([first, second, first * second, first - second], dim=1)
        return loss_or_predictions(self.head(encoded), data_samples, mode)
