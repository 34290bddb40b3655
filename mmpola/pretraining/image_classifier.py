"""The image classifier that MMEngine's Runner trains and tests."""

from __future__ import annotations

from typing import Any

from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmpola.backbones.classifier import Classifier
from mmpola.checkpoint.init_cfg import InitCfg, check_init_cfg, initialize
from mmpola.pretraining.outputs import loss_or_predictions
from mmpola.pretraining.preprocessor import ClassificationPreprocessor
from mmpola.pretraining.teacher import Distillation
from mmpola.registry import MODELS


class ImageClassifier(Classifier, BaseModel):
    """A backbone of mmpola with the head that it was published with, trained with cross entropy.

    With a teacher it learns the teacher's logits, too or only.

    Args:
        backbone: config of a backbone, whose last map is used; the head determines its `out_norm`.
            Its own `init_cfg` loads only the backbone, for fine-tuning on another number of
            classes.
        num_classes: length of the logits.
        data_preprocessor: config of `ClassificationPreprocessor`, whose number of classes is set to
            `num_classes`, or of one of MMEngine's; None: the batch is only moved to the model's
            device.
        projection: channels of PolaFormerPP's head; None: the published number.
        init_cfg: None, or dict(type='Pretrained', checkpoint=PATH), to load backbone and head from
            one file; or anything else that a `Backbone` takes.
        teacher: None, or the config of a trained classifier, for example
            dict(type='mmpola.TimmTeacher', model_name='resnet50'), with arguments of
            `mmpola.pretraining.teacher.Teacher`. It is in no checkpoint.
        distillation: how to learn from the teacher: arguments of
            `mmpola.pretraining.teacher.Distillation`.

    Raises:
        ValueError: an argument is out of range; the message names it.
    """

    init_cfg: InitCfg

    def __init__(
        self,
        backbone: dict[str, Any],
        num_classes: int,
        *,
        data_preprocessor: dict[str, Any] | None = None,
        projection: int | None = None,
        init_cfg: InitCfg = None,
        teacher: dict[str, Any] | None = None,
        distillation: dict[str, Any] | None = None,
    ) -> None:
        if num_classes < 1:
            raise ValueError(f'num_classes: expected a positive integer, got {num_classes}')
        if distillation and not teacher:
            raise ValueError(f'teacher: expected one for distillation={distillation}, got None')
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
        self.num_classes = num_classes
        self.distillation: Distillation | None = None
        if teacher:
            self.distillation = Distillation(teacher, **(distillation or {}))

    def init_weights(self) -> None:
        """Apply `init_cfg`, and the backbone's own `init_cfg` unless the first names a file."""
        from_file = initialize(self, self.init_cfg)
        if not from_file:
            self.backbone.init_weights()

    def forward(
        self,
        inputs: Tensor,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Classify images.

        Args:
            inputs: images [B, in_channels, H, W].
            data_samples: one per image, with `gt_label`, a class index, or `gt_score`
                [num_classes], its soft target.
            mode: what is returned. 'tensor': logits [B, num_classes]. 'loss': dict(loss=...); with
                a teacher dict(loss_teacher=..., loss_labels=...), to be added. 'predict': the data
                samples, or new ones, with `pred_score` [num_classes], which sums to 1, and
                `pred_label`, the index of its largest entry.

        Raises:
            ValueError: the mode is unknown, or data samples lack targets in mode 'loss'.
        """
        logits = super().forward(inputs)
        if mode != 'loss' or self.distillation is None:
            return loss_or_predictions(logits, data_samples, mode)
        weight = self.distillation.weight
        losses = {'loss_teacher': weight * self.distillation.loss(inputs, logits)}
        if weight < 1:
            of_labels = loss_or_predictions(logits, data_samples, mode)['loss']
            losses['loss_labels'] = (1 - weight) * of_labels
        return losses
