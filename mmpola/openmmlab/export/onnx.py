"""Export a backbone, classifier or segmenter to ONNX, after comparing it with PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from mmpola.files import write_atomically
from mmpola.images import mean_and_std, reads_bgr
from mmpola.messages import UsageError, first_line
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import input_channels
from mmpola.openmmlab.start.fit import TrainingCheckpoint, load_model
from mmpola.pretraining.data_config import evaluation_transform

TOLERANCE = 1e-4
"""Largest error of an output, relative to the output's largest magnitude."""

RECORDED_SIZE = (2, 224, 256)
"""Batch, height and width with which a dynamic program is recorded. A batch of 1 would become a
constant."""

COMPARED_SIZES = ((1, 224, 224), (2, 97, 130), (1, 320, 416))
"""Batch, height and width with which a dynamic program is compared: one window and several, sides
that no stride divides, one and two images."""

Outputs = dict[str, Tensor]
"""Name -> tensor, in the order of the exported program."""


class ExportModel(nn.Module):
    """Pixels [B, C, H, W], float32 -> named outputs.

    Three channels are RGB in 0 ... 255; others are as the config's pipeline loads them.

    Args:
        model: the config's model or its backbone.
        outputs: computes named outputs of the model for normalised images.
        mean, std: of the channels, in the order that the model reads.
        reverse: whether the model reads BGR.
        channels: of the images.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        outputs: Callable[[Any, Tensor], Outputs],
        mean: Tensor,
        std: Tensor,
        reverse: bool,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs
        self.reverse = reverse
        self.channels = channels
        self.register_buffer('mean', mean.float().reshape(-1, 1, 1))
        self.register_buffer('std', std.float().reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Outputs:
        """Return the named outputs for images [B, C, H, W]."""
        if self.reverse:
            images = images.flip(1)
        return self.outputs(self.model, (images - self.mean) / self.std)


def export_model(
    cfg: Config, built: nn.Module, checkpoint: TrainingCheckpoint, backbone_only: bool
) -> ExportModel:
    """Return what is exported of a config's model, with the checkpoint's weights.

    Args:
        cfg: config of a classifier or a segmenter, or of any model with `backbone_only`; whole
            detectors are in `detector_export`.
        built: its model, from `validate_config`.
        checkpoint: compared with the config.
        backbone_only: export the maps of the backbone.

    Raises:
        UsageError: it is another model, such as a language model.
    """
    model = unwrapped(load_model(built, checkpoint))
    is_segmenter = hasattr(model, 'decode_head')
    is_classifier = hasattr(model, 'global_pool')  # as timm's models have
    if not (backbone_only or is_segmenter or is_classifier):
        raise UsageError(
            f'{type(model).__name__}: only classifiers, segmenters and detectors are exported, and '
            'backbones with --backbone'
        )
    channels = input_channels(cfg.model)
    mean, std, reverse = normalisation(model, cfg)
    if backbone_only:
        return ExportModel(model.backbone, backbone_maps, mean, std, reverse, channels)
    replace_upsampling(model)
    return ExportModel(model, logits, mean, std, reverse, channels)


def normalisation(model: Any, cfg: Config) -> tuple[Tensor, Tensor, bool]:
    """Return mean and std of a model's pixels, and whether it reads BGR."""
    preprocessor = model.data_preprocessor
    found = mean_and_std(preprocessor)
    if found is not None:
        mean, std = found
        return mean, std, reads_bgr(preprocessor) and input_channels(cfg.model) == 3
    transform = evaluation_transform(cfg)
    mean = 255 * torch.tensor(transform.get('mean', IMAGENET_DEFAULT_MEAN))
    std = 255 * torch.tensor(transform.get('std', IMAGENET_DEFAULT_STD))
    return mean, std, False


def backbone_maps(backbone: Any, images: Tensor) -> Outputs:
    """Compute map0, map1 ...: maps [B, C_i, H / s_i, W / s_i] of the backbone's `out_indices`."""
    maps = backbone(images)
    return {f'map{index}': x for index, x in zip(backbone.out_indices, maps, strict=True)}


def logits(model: Any, images: Tensor) -> Outputs:
    """Compute logits: [B, classes] of a classifier, [B, classes, h, w] of a segmenter.

    A segmenter resizes them to the image afterwards.
    """
    return {'logits': model(images, mode='tensor')}


def threshold_note(model: Any) -> str | None:
    """Say how the logits of a segmenter with one output channel become labels; None for others."""
    head: Any = getattr(model, 'decode_head', None)
    if getattr(head, 'out_channels', None) != 1:
        return None
    return (
        'logits: one channel (model.decode_head.out_channels=1); class 1 is where their sigmoid is '
        f'above {head.threshold:g} (model.decode_head.threshold), class 0 elsewhere'
    )


def replace_upsampling(model: nn.Module) -> None:
    """Replace mmseg's Upsample layers by PyTorch's, which serve every size when exported.

    Theirs multiply the size by a float and round it by int(), which records a constant.
    """
    for parent in model.modules():
        layer: Any
        for name, layer in parent.named_children():
            layer_class = type(layer)
            is_mmseg = layer_class.__module__.startswith('mmseg.')
            if is_mmseg and layer_class.__name__ == 'Upsample' and not layer.size:
                replacement = nn.Upsample(
                    scale_factor=layer.scale_factor,
                    mode=layer.mode,
                    align_corners=layer.align_corners,
                )
                setattr(parent, name, replacement)


def export(model: ExportModel, path: Path, shape: tuple[int, ...] | None) -> float:
    """Export a model to an ONNX file whose outputs in onnxruntime agree with PyTorch.

    They are compared on random pixels. Returns the largest error of all outputs and sizes, see
    `TOLERANCE`.

    Args:
        model: on the CPU, in float32.
        path: the file to write, in an existing folder.
        shape: height and width of the one image that the program takes; None: any batch, height and
            width.

    Raises:
        UsageError: the model cannot be exported, or an output differs from PyTorch's. Nothing is
            written.
    """
    recorded_size: tuple[int, ...] = RECORDED_SIZE
    compared_sizes: list[tuple[int, ...]] = list(COMPARED_SIZES)
    if shape is not None:
        recorded_size = (1, *shape)
        compared_sizes = [recorded_size]
    program = record_program(model, random_images(recorded_size, model.channels), shape is None)
    content = program.model_proto.SerializeToString()

    session = open_session(content)
    error = 0.0
    for size in compared_sizes:
        images = random_images(size, model.channels)
        found = session.run(None, {'images': images.numpy()})
        with torch.no_grad():
            expected = model(images)
        for (name, reference), output in zip(expected.items(), found, strict=True):
            difference = np.abs(output.astype(np.float64) - reference.numpy()).max()
            error_of_output = float(difference / reference.abs().max())
            if not error_of_output <= TOLERANCE:  # NaN too
                raise UsageError(
                    f'{name} of {list(images.shape)}: expected a relative error of at most '
                    f'{TOLERANCE:g} against PyTorch, got {error_of_output:.2g}; nothing was '
                    'written. A model that draws random numbers cannot be exported'
                )
            error = max(error, error_of_output)

    write_atomically(path, content)
    return error


def open_session(content: bytes) -> Any:
    """Return an onnxruntime session of a program, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    providers = ['CPUExecutionProvider']
    return onnxruntime.InferenceSession(content, options, providers=providers)


def random_images(size: tuple[int, ...], channels: int) -> Tensor:
    """Return pixels [B, C, H, W] in 0 ... 255 for `size` = (B, H, W), always the same ones."""
    batch, height, width = size
    generator = torch.Generator().manual_seed(0)
    return 255 * torch.rand(batch, channels, height, width, generator=generator)


def import_onnx() -> None:
    """Import the packages of the extra `export`, so that a missing one is reported at once.

    Raises:
        ModuleNotFoundError: one is not installed.
    """
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401  torch.onnx.export needs it


def record_program(model: ExportModel, sample: Tensor, is_dynamic: bool) -> Any:
    """Record the model for `sample` [B, C, H, W] as torch.onnx.ONNXProgram."""
    dynamic_shapes = None
    if is_dynamic:
        dynamic_shapes = {'images': {0: 'batch', 2: 'height', 3: 'width'}}
    logging.getLogger('torch.onnx').setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            return torch.onnx.export(
                model,
                (sample,),
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                input_names=['images'],
                output_names=list(model(sample)),
                verbose=False,
            )
        except Exception as error:  # torch's own, and any that the model raises under tracing
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            name = type(model.model).__name__
            raise UsageError(f'{name}: cannot be exported: {first_line(cause)}') from error
