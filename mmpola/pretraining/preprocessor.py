"""Turn a batch of the data loader into the classifier's input: device, mixup, soft targets."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement
from timm.data import Mixup
from timm.data.mixup import mixup_target
from torch import Tensor


class ClassificationPreprocessor(BaseDataPreprocessor):
    """Stacks images to [B, 3, H, W] on the model's device; in training, sets targets and mixes.

    Mixup and cutmix use NumPy's random numbers, which `ExactEpochLoop` seeds for every step.

    Args:
        mixup: arguments of timm.data.Mixup except `num_classes` and `label_smoothing`; None: no
            mixing. The last image of an odd batch is not mixed.
        label_smoothing: in [0, 1); with 0 and no mixup the targets stay class indices.
        channels_last: use this memory format for the batch.
        non_blocking: copy to the device without waiting for it.

    Attributes:
        num_classes: length of soft targets; ImageClassifier sets it to its own.

    Raises:
        ValueError: an argument is out of range; the message names it.
    """

    num_classes: int | None = None

    def __init__(
        self,
        mixup: dict[str, Any] | None = None,
        label_smoothing: float = 0.0,
        channels_last: bool = False,
        non_blocking: bool = True,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f'label_smoothing: expected a number in [0, 1), got {label_smoothing}')
        self.label_smoothing = label_smoothing
        self.memory_format = torch.contiguous_format
        if channels_last:
            self.memory_format = torch.channels_last
        self.mixer: Mixup | None = None
        if mixup is not None:
            self.mixer = Mixup(**mixup, label_smoothing=label_smoothing)
            if self.mixer.mixup_alpha <= 0 and self.mixer.cutmix_alpha <= 0:
                rule = 'expected mixup_alpha or cutmix_alpha above 0'
                raise ValueError(f'mixup: {rule}, got {mixup}')

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Convert dict(inputs, data_samples) of a data loader to the same for a model.

        Args:
            data: `inputs` [B, 3, H, W] or B images [3, H, W]; `data_samples`, which need `gt_label`
                for training only.
            training: apply mixup, and set the target of every sample on the device: `gt_score`
                [num_classes], or `gt_label`.

        Raises:
            ValueError: a label is not below num_classes.
        """
        inputs = data['inputs']
        samples = data.get('data_samples')
        if not isinstance(inputs, Tensor):
            inputs = torch.stack(list(inputs))
        inputs = inputs.to(
            self.device, non_blocking=self._non_blocking, memory_format=self.memory_format
        )
        if training:
            inputs = self._set_targets(inputs, samples or [])
        return {'inputs': inputs, 'data_samples': samples}

    def _set_targets(self, images: Tensor, samples: list[BaseDataElement]) -> Tensor:
        """Set the target of every sample; return the images, mixed as the targets are.

        Images without labels, for a teacher, are mixed and get no target.
        """
        if samples and not any('gt_label' in sample for sample in samples):
            return self._mix(images, torch.zeros(len(images), dtype=torch.long), None)
        numbers = []
        for sample in samples:
            number = int(sample.gt_label)
            if self.num_classes is not None and not 0 <= number < self.num_classes:
                path = sample.metainfo.get('img_path', 'data_samples')
                rule = f'expected a gt_label below num_classes={self.num_classes}'
                raise ValueError(f'{path}: {rule}, got {number}')
            numbers.append(number)
        labels = torch.tensor(numbers, device=self.device)
        if self.mixer is None and self.label_smoothing == 0:
            for sample, label in zip(samples, labels, strict=True):
                sample.gt_label = label
            return images
        if self.num_classes is None:
            rule = 'expected the number of classes for soft targets'
            raise ValueError(f'num_classes: {rule}, got None')
        targets = mixup_target(labels, self.num_classes, smoothing=self.label_smoothing)
        images = self._mix(images, labels, targets)
        for sample, target in zip(samples, targets, strict=True):
            sample.gt_score = target
        return images

    def _mix(self, images: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
        """Return mixed images, or the given ones without a mixer; set `targets` to the mixed."""
        if self.mixer is None:
            return images
        self.mixer.num_classes = self.num_classes or 1
        even = len(images) // 2 * 2  # timm mixes pairs
        images = images.clone(memory_format=torch.preserve_format)  # timm mixes in place
        _, mixed = self.mixer(images[:even], labels[:even].to(images.device))
        if targets is not None:
            targets[:even] = mixed
        return images
