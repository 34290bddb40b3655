"""A trained classifier, the teacher, whose logits another one learns, with or without labels.

Source: Hinton, Vinyals, Dean, 'Distilling the Knowledge in a Neural Network' (arXiv 1503.02531),
for soft targets; Touvron et al., DeiT (arXiv 2012.12877, equation 3) for hard ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import resolve_checkpoint
from mmpola.checkpoint.init_cfg import PRETRAINED_FORM, names_file
from mmpola.registry import MODELS


class OnnxTeacher(nn.Module):
    """A classifier in an ONNX file, run by onnxruntime, which is far faster than PyTorch on a CPU.

    Args:
        file: a model with one input, images [B, 3, H, W], and logits [B, num_classes] as its first
            output, by any name that `resolve_checkpoint` knows. B, H and W must be free, or the
            sizes that are used.

    Raises:
        ValueError: there is no such file.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        path = _file('file', file)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.input_name = self.session.get_inputs()[0].name

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> logits [B, num_classes] float32, on the device of the images."""
        outputs = self.session.run(None, {self.input_name: images.float().cpu().numpy()})
        return torch.from_numpy(outputs[0]).to(images.device)


class TimmTeacher(nn.Module):
    """A model of timm with its trained weights.

    Args:
        model_name: a name that `timm.create_model` takes.
        checkpoint_path: file of its weights, by any name that `resolve_checkpoint` knows; '' for
            timm's, which are downloaded.
        arguments: others of `timm.create_model`, such as the `num_classes` of the file.

    Attributes:
        pretrained_cfg: what timm says of the weights: `input_size`, `mean`, `std`.

    Raises:
        RuntimeError: the file has other tensors than the model, or timm has no weights.
        ValueError: there is no such file, or timm's weights have another number of classes: the
            head would be random.
    """

    def __init__(self, model_name: str, checkpoint_path: str = '', **arguments: Any) -> None:
        super().__init__()
        if checkpoint_path:
            checkpoint_path = _file('checkpoint_path', checkpoint_path)
        self.model = timm.create_model(
            model_name,
            pretrained=not checkpoint_path,
            checkpoint_path=checkpoint_path,
            **arguments,
        )
        pretrained_cfg: Any = self.model.pretrained_cfg
        self.pretrained_cfg = pretrained_cfg
        known = pretrained_cfg['num_classes']
        wanted = arguments.get('num_classes', known)
        if not checkpoint_path and wanted != known:
            raise ValueError(
                f'teacher.checkpoint_path: expected a file of weights for {wanted} classes, '
                f"got '', which is timm's for {known}: the head would be random"
            )

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
        ValueError: an argument is out of range, or, at the first call, the model would have random
            weights; also what its constructor raises.
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
        if image_size is not None and (not isinstance(image_size, int) or image_size < 1):
            raise ValueError(
                f'teacher.image_size: expected None or a number of pixels above 0, got {image_size}'
            )
        self.image_size = image_size
        self.mean = _three('mean', mean)
        self.std = _three('std', std, above_zero=True)
        self.student_mean = _three('student_mean', student_mean)
        self.student_std = _three('student_std', student_std, above_zero=True)
        self.config = model
        self.model: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self

    def build(self) -> Any:
        """Build the model, unless it has been; validation, test and prediction do without it."""
        if self.model is not None:
            return self.model
        # The student's random numbers are the same with and without a teacher.
        with torch.random.fork_rng(devices=[]):
            model: Any = MODELS.build(copy.deepcopy(self.config))
            if not isinstance(model, (OnnxTeacher, TimmTeacher)):
                init_cfg = self.config.get('init_cfg')
                if not names_file(init_cfg):
                    raise ValueError(
                        f'teacher.init_cfg: expected {PRETRAINED_FORM}, got {init_cfg}: random '
                        'weights'
                    )
                model.init_weights()
        model.requires_grad_(False).eval()
        known: Any = getattr(model, 'pretrained_cfg', {})
        if self.image_size is None and 'input_size' in known:
            self.image_size = known['input_size'][-1]
        mean = torch.tensor(self.mean or known.get('mean', IMAGENET_DEFAULT_MEAN)).view(-1, 1, 1)
        std = torch.tensor(self.std or known.get('std', IMAGENET_DEFAULT_STD)).view(-1, 1, 1)
        # (x * student_std + student_mean - mean) / std as one product and one sum
        self.factor = torch.tensor(self.student_std).view(-1, 1, 1) / std
        self.offset = (torch.tensor(self.student_mean).view(-1, 1, 1) - mean) / std
        self.model = model
        return self.model

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the teacher's logits [B, num_classes] for the student's input [B, 3, H, W]."""
        model = self.build().to(images.device)
        images = images * self.factor.to(images.device) + self.offset.to(images.device)
        if self.image_size is not None:
            size = (self.image_size, self.image_size)
            images = F.interpolate(images, size, mode='bicubic', antialias=True)
        logits: Tensor = model(images)
        return logits


def _file(argument: str, name: str) -> str:
    """Return the path of a teacher's file, which is downloaded if it has a URL.

    Raises:
        ValueError: there is no such file; the message names the argument.
    """
    try:
        return str(resolve_checkpoint(name))
    except CheckpointError as error:
        raise ValueError(f'teacher.{argument}: expected a file of weights, got {error}') from None


def _three(
    name: str, values: Sequence[float] | None, above_zero: bool = False
) -> Sequence[float] | None:
    """Return the values of an argument of `Teacher`, one per channel; None for the teacher's own.

    Raises:
        ValueError: they are not three numbers, or one is not above zero where it must be.
    """
    if values is None:
        return None
    are_numbers = isinstance(values, (list, tuple)) and all(
        isinstance(value, (int, float)) for value in values
    )
    if not are_numbers or len(values) != 3 or (above_zero and min(values) <= 0):
        rule = 'expected three numbers'
        if above_zero:
            rule += ' above 0'
        raise ValueError(f'teacher.{name}: {rule}, got {values}')
    return [float(value) for value in values]


class Distillation:
    """The loss of a student that learns a teacher's logits.

    Args:
        teacher: arguments of `Teacher`, including its model: dict(type=…, …).
        kind: 'soft': the Kullback-Leibler divergence from the teacher's to the student's
            probabilities, times temperature^2; 'hard': cross entropy with the teacher's best class.
        temperature: logits are divided by it; for 'soft' only.
        weight: of this loss, in (0, 1]; the loss of the labels has 1 - weight. With 1 no labels
            are needed.

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
        if not isinstance(teacher, dict) or 'type' not in teacher:
            raise ValueError(f'teacher: expected dict(type=…, …), got {teacher}')
        self.kind = kind
        self.temperature = temperature
        self.weight = weight
        self.teacher = Teacher(**teacher)
        self.is_checked = False

    def check_teacher(self, images: Tensor, num_classes: int) -> Tensor:
        """Compare what the teacher returns for the first batch with what the loss needs; return it.

        Raises:
            ValueError: its weights do not fit; or what it returns are no logits of as many classes:
                another shape, NaN or infinity, or, for 'soft', probabilities.
        """
        try:
            wanted = self.teacher(images).float()
        except CheckpointError as error:
            raise ValueError(f'teacher: {error}') from None
        expected = [len(images), num_classes]
        if list(wanted.shape) != expected:
            raise ValueError(
                f'teacher: expected logits {expected}, a row for each image and a column for each '
                f'of num_classes, got {list(wanted.shape)}'
            )
        if not wanted.isfinite().all():
            raise ValueError('teacher: expected finite logits, got NaN or infinity')
        are_scores = num_classes > 1 and bool((wanted >= 0).all())
        if self.kind == 'soft' and are_scores and bool(((wanted.sum(1) - 1).abs() < 1e-3).all()):
            raise ValueError(
                'teacher: expected logits, got probabilities, whose softmax is nearly uniform; '
                "leave out the softmax at its end, or learn its best class with kind='hard'"
            )
        return wanted

    def loss(self, images: Tensor, logits: Tensor) -> Tensor:
        """Compare the student's logits [B, num_classes] with the teacher's for the same images.

        Where the teacher's are NaN, the loss is, too.

        Raises:
            ValueError: see `Teacher` and, for the first batch, `check_teacher`.
        """
        if self.is_checked:
            wanted = self.teacher(images).float()
        else:
            wanted = self.check_teacher(images, logits.shape[1])
            self.is_checked = True
        logits = logits.float()
        if self.kind == 'hard':
            best, labels = wanted.max(1)
            return F.cross_entropy(logits, labels) + 0 * best.sum()
        log_probability = F.log_softmax(logits / self.temperature, 1)
        log_wanted = F.log_softmax(wanted / self.temperature, 1)
        divergence = F.kl_div(log_probability, log_wanted, reduction='batchmean', log_target=True)
        return divergence * self.temperature**2
