"""A trained classifier, the teacher, whose logits another one learns, with or without labels.

Source: Hinton, Vinyals, Dean, 'Distilling the Knowledge in a Neural Network' (arXiv 1503.02531),
for soft targets; Touvron et al., DeiT (arXiv 2012.12877, equation 3) for hard ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from mmpola.registry import MODELS


class OnnxTeacher(nn.Module):
    """A classifier in an ONNX file, run by onnxruntime, which is far faster than PyTorch on a CPU.

    Args:
        file: path of a model with one input, images [B, 3, H, W], and logits [B, num_classes] as
            its first output. B, H and W must be free, or the sizes that are used.

    Raises:
        ValueError: there is no such file.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        if not os.path.isfile(file):
            raise ValueError(f'teacher.file: expected an ONNX file, got {file}, which is not there')
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(file, options, providers=providers)
        self.input_name = self.session.get_inputs()[0].name

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> logits [B, num_classes] float32, on the device of the images."""
        outputs = self.session.run(None, {self.input_name: images.float().cpu().numpy()})
        return torch.from_numpy(outputs[0]).to(images.device)


class TimmTeacher(nn.Module):
    """A model of timm with its trained weights.

    Args:
        model_name: a name that `timm.create_model` takes.
        checkpoint_path: file of its weights; '' for timm's, which are downloaded.

    Attributes:
        pretrained_cfg: what timm says of the weights: `input_size`, `mean`, `std`.
    """

    def __init__(self, model_name: str, checkpoint_path: str = '') -> None:
        super().__init__()
        self.model = timm.create_model(
            model_name, pretrained=not checkpoint_path, checkpoint_path=checkpoint_path
        )
        self.pretrained_cfg: Any = self.model.pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> logits [B, num_classes]."""
        logits: Tensor = self.model(images)
        return logits


class Teacher:
    """A frozen classifier in eval mode, which reads the student's images in its own way.

    It is no module, so that it is in no checkpoint, no optimizer and no state of the student.
    Copies of the student, such as an average of its weights, share it.

    Args:
        image_size: side, in pixels, to which the images are resized; None: timm's for a
            TimmTeacher, else they stay as they are.
        mean: of the teacher's input, per channel, where 1 is white; None: timm's for a
            TimmTeacher, else ImageNet's.
        std: as `mean`.
        student_mean: of the student's input: what the data's `transform` has subtracted.
        student_std: as `student_mean`.
        model: config of a registered classifier with weights, type=…, …: `mmpola.OnnxTeacher`,
            `mmpola.TimmTeacher`, or a classifier with an `init_cfg`.

    Raises:
        ValueError: the model would have random weights, or a file is missing.
    """

    def __init__(
        self,
        *,
        image_size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        student_mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
        student_std: Sequence[float] = IMAGENET_DEFAULT_STD,
        **model: Any,
    ) -> None:
        # The student's random numbers are the same with and without a teacher.
        with torch.random.fork_rng(devices=[]):
            self.model: nn.Module = MODELS.build(model)
            if not isinstance(self.model, (OnnxTeacher, TimmTeacher)):
                if not model.get('init_cfg'):
                    rule = "expected dict(type='Pretrained', checkpoint=FILE)"
                    raise ValueError(f'teacher.init_cfg: {rule}, got None: random weights')
                self.model.init_weights()
        self.model.requires_grad_(False).eval()
        known = getattr(self.model, 'pretrained_cfg', {})
        if image_size is None and 'input_size' in known:
            image_size = known['input_size'][-1]
        self.image_size = image_size
        mean = mean or known.get('mean', IMAGENET_DEFAULT_MEAN)
        std = std or known.get('std', IMAGENET_DEFAULT_STD)
        # (x * student_std + student_mean - mean) / std as one product and one sum
        std_column = torch.tensor(std).view(-1, 1, 1)
        self.factor = torch.tensor(student_std).view(-1, 1, 1) / std_column
        difference = torch.tensor(student_mean) - torch.tensor(mean)
        self.offset = difference.view(-1, 1, 1) / std_column

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the teacher's logits [B, num_classes] for the student's input [B, 3, H, W]."""
        self.model.to(images.device)
        images = images * self.factor.to(images.device) + self.offset.to(images.device)
        if self.image_size is not None:
            size = (self.image_size, self.image_size)
            images = F.interpolate(images, size, mode='bicubic', antialias=True)
        logits: Tensor = self.model(images)
        return logits


class Distillation:
    """The loss of a student that learns a teacher's logits.

    Args:
        teacher: arguments of `Teacher`, those of its model among them: dict(type=…, …).
        kind: 'soft': the Kullback-Leibler divergence from the teacher's to the student's
            probabilities, times temperature^2; 'hard': cross entropy with the teacher's best class.
        temperature: logits are divided by it; for 'soft' only.
        weight: of this loss, in (0, 1]; that of the labels is 1 - weight. With 1 no labels are
            needed.

    Raises:
        ValueError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        teacher: dict[str, Any],
        *,
        kind: str = 'soft',
        temperature: float = 1.0,
        weight: float = 0.5,
    ) -> None:
        if kind not in ('soft', 'hard'):
            raise ValueError(f"distillation.kind: expected 'soft' or 'hard', got {kind!r}")
        if temperature <= 0:
            raise ValueError(f'distillation.temperature: expected above 0, got {temperature}')
        if not 0 < weight <= 1:
            raise ValueError(f'distillation.weight: expected a number in (0, 1], got {weight}')
        self.teacher_config = teacher
        self.kind = kind
        self.temperature = temperature
        self.weight = weight
        self.teacher: Teacher | None = None

    def loss(self, images: Tensor, logits: Tensor) -> Tensor:
        """Compare the student's logits [B, num_classes] with the teacher's for the same images.

        The teacher is built at the first call: validation, test and prediction do without it.

        Raises:
            ValueError: the teacher has another number of classes; see also `Teacher`.
        """
        if self.teacher is None:
            self.teacher = Teacher(**self.teacher_config)
        wanted = self.teacher(images).float()
        if wanted.shape != logits.shape:
            rule = f'expected {logits.shape[1]} classes like the model'
            raise ValueError(f'teacher: {rule}, got {wanted.shape[1]}')
        logits = logits.float()
        if self.kind == 'hard':
            return F.cross_entropy(logits, wanted.argmax(1))
        log_probability = F.log_softmax(logits / self.temperature, 1)
        log_wanted = F.log_softmax(wanted / self.temperature, 1)
        divergence = F.kl_div(log_probability, log_wanted, reduction='batchmean', log_target=True)
        return divergence * self.temperature**2
