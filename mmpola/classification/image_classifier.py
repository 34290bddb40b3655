"""The image classifier that MMEngine's Runner trains and tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmpola.backbones.classifier import Classifier
from mmpola.checkpoint.weights import check_init_cfg, load_weights
from mmpola.classification.preprocessor import ClassificationPreprocessor
from mmpola.registry import MODELS


@MODELS.register_module()
class ImageClassifier(Classifier, BaseModel):
    """A backbone of mmpola with the head that it was published with, trained with cross entropy.

    Args:
        backbone: config of a backbone, whose last map is used; the head determines its `out_norm`. With its own
            `init_cfg` only the backbone is loaded: fine-tuning on another number of classes starts that way.
        num_classes: length of the logits.
        data_preprocessor: config of `ClassificationPreprocessor`, whose number of classes is set to `num_classes`, or
            of one of MMEngine's; None: the batch is only moved to the model's device.
        projection: channels of PolaFormerPP's head; None: the published number.
        init_cfg: None, or dict(type='Pretrained', checkpoint=PATH): backbone and head from one file.

    Raises:
        ValueError: an argument is out of range; the message names it.
    """

    init_cfg: dict[str, Any] | None

    def __init__(
        self,
        backbone: dict[str, Any],
        num_classes: int,
        *,
        data_preprocessor: dict[str, Any] | None = None,
        projection: int | None = None,
        init_cfg: dict[str, Any] | None = None,
    ) -> None:
        if num_classes < 1:
            raise ValueError(f'num_classes: expected an integer from 1, got {num_classes}')
        check_init_cfg(init_cfg)
        arguments = dict(backbone)
        cls: Any = arguments.pop('type', None)
        if isinstance(cls, str):
            cls = MODELS.get(cls) or cls
        super().__init__(
            cls,
            num_classes,
            projection=projection,
            arguments=arguments,
            data_preprocessor=data_preprocessor,
            init_cfg=init_cfg,
        )
        if isinstance(self.data_preprocessor, ClassificationPreprocessor):
            self.data_preprocessor.num_classes = num_classes

    def init_weights(self) -> None:
        """Load the file of `init_cfg`; without one the backbone loads the file of its own `init_cfg`."""
        if self.init_cfg is None:
            self.backbone.init_weights()
        else:
            load_weights(self, self.init_cfg['checkpoint'])

    def forward(self, inputs: Tensor, data_samples: list[BaseDataElement] | None = None, mode: str = 'tensor') -> Any:
        """Classify images.

        Args:
            inputs: images [B, in_channels, H, W].
            data_samples: one per image, with `gt_label`, a class index, or `gt_score` [num_classes], its soft target.
            mode: what is returned. 'tensor': logits [B, num_classes]. 'loss': dict(loss=...). 'predict': the data
                samples, or new ones, with `pred_score` [num_classes], which sums to 1, and `pred_label`, the index of
                its largest entry.

        Raises:
            ValueError: the mode is unknown, or data samples lack targets in mode 'loss'.
        """
        logits = super().forward(inputs)
        if mode == 'tensor':
            return logits
        if mode == 'loss':
            return {'loss': F.cross_entropy(logits, _targets(data_samples).to(logits.device))}
        if mode == 'predict':
            return _predictions(logits, data_samples)
        raise ValueError(f"mode: expected 'tensor', 'loss' or 'predict', got {mode!r}")


def _targets(data_samples: list[BaseDataElement] | None) -> Tensor:
    """Stack soft targets [B, num_classes] if every sample has one, else class indices [B]."""
    samples = data_samples or []
    counts = {name: sum(name in sample for sample in samples) for name in ('gt_score', 'gt_label')}
    if samples and counts['gt_score'] == len(samples):
        return torch.stack([sample.gt_score for sample in samples])
    if samples and counts['gt_label'] == len(samples):
        return torch.stack([torch.as_tensor(sample.gt_label).reshape(()) for sample in samples])
    raise ValueError(
        f'data_samples: expected gt_label or gt_score in every sample, got {counts["gt_label"]} and '
        f'{counts["gt_score"]} of {len(samples)}'
    )


def _predictions(logits: Tensor, data_samples: list[BaseDataElement] | None) -> list[BaseDataElement]:
    samples = [BaseDataElement() for _ in logits] if data_samples is None else data_samples
    for sample, score in zip(samples, logits.softmax(1), strict=True):
        sample.pred_score, sample.pred_label = score, score.argmax()
    return samples
