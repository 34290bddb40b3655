"""Export a model to ONNX, compare it with PyTorch on a real image, and only then write the file."""

from __future__ import annotations

import copy
import logging
import timeit
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmpola.apps.publish.export_model import ExportModel
from mmpola.checkpoint.write import write_atomically
from mmpola.messages import UsageError, first_line, info, listed

ONNX_PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')

LOWEST_OPSET = 18
"""The lowest opset that torch.onnx.export(dynamo=True) writes."""

TOLERANCE = 1e-4
"""Largest error of an output in float32, relative to the output's largest magnitude."""

HALF_TOLERANCE = 2e-2
"""The same in float16, compared with PyTorch in float32; float16 itself resolves 1e-3."""

RECORDED_SIZE = (2, 224, 256)
"""Batch, height and width with which a dynamic program is recorded. A batch of 1 would become a
constant."""

COMPARED_SIZES = ((1, 224, 224), (2, 97, 130), (1, 320, 416))
"""Batch, height and width with which a dynamic program is compared: one window and several, sides
that no stride divides, one and two images."""

TIMED_RUNS = 5


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        opset: version of ONNX's operators.
        size: size of the file in bytes.
        inputs, outputs: shapes by name; a dynamic dimension is a name or an expression.
        error: largest error of all outputs and sizes, see `TOLERANCE`.
        compared: (batch, height, width) of the last comparison.
        seconds: of onnxruntime and of PyTorch in float32 for it, on the CPU.
    """

    opset: int
    size: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    error: float
    compared: tuple[int, int, int]
    seconds: tuple[float, float]


def check_packages() -> None:
    """Raise UsageError if a package that exporting needs is not installed."""
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f'{listed(missing)}: not installed; pip install {" ".join(ONNX_PACKAGES)}')


def export(
    model: ExportModel,
    image: Image.Image,
    path: Path,
    *,
    shape: tuple[int, int] | None,
    opset: int | None = None,
    half: bool = False,
) -> ExportReport:
    """Export a model to an ONNX file whose outputs in onnxruntime agree with PyTorch.

    Args:
        model: on the CPU, in float32, and stays so.
        image: resized to every size that is compared.
        path: the file to write, in an existing folder.
        shape: height and width of the one image that the program takes; None: any batch, height and
            width.
        opset: version of ONNX's operators; None: torch's choice.
        half: store weights and compute in float16, except where mmpola's operators accumulate in
            float32.

    Raises:
        UsageError: the model or the opset cannot be exported, an output is not finite, or it
            differs from PyTorch's. Nothing is written.
    """
    is_dynamic = shape is None
    recorded_size = RECORDED_SIZE
    compared_sizes = list(COMPARED_SIZES)
    duration = ', which takes minutes for any size'
    if shape is not None:
        height, width = shape
        recorded_size = (1, height, width)
        compared_sizes = [recorded_size]
        duration = ''
    batches = [image_batch(image, size) for size in compared_sizes]

    with torch.no_grad():
        info('1 of 3: computing the outputs in PyTorch')
        expected = []
        for batch in batches:
            expected.append({name: x.numpy() for name, x in model(batch).items()})
        check_deterministic(model, batches[0], expected[0])

        info(f'2 of 3: recording the program{duration}')
        exported = copy.deepcopy(model)
        if half:
            exported.model.half()
        program = record_program(exported, image_batch(image, recorded_size), is_dynamic, opset)
        content = program.model_proto.SerializeToString()

        info('3 of 3: comparing with onnxruntime')
        session = open_session(content)
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        errors = []
        for batch, outputs in zip(batches, expected, strict=True):
            errors.append(largest_error(session, batch.numpy(), outputs, tolerance))
        last = batches[-1]
        inputs = {'images': last.numpy()}
        runtime_seconds = timeit.repeat(
            lambda: session.run(None, inputs), number=1, repeat=TIMED_RUNS
        )
        eager_seconds = timeit.repeat(lambda: model(last), number=1, repeat=TIMED_RUNS)

    write_atomically(path, content)
    return ExportReport(
        opset=program.model.opset_imports[''],
        size=len(content),
        inputs={x.name: x.shape for x in session.get_inputs()},
        outputs={x.name: x.shape for x in session.get_outputs()},
        error=max(errors),
        compared=compared_sizes[-1],
        seconds=(min(runtime_seconds), min(eager_seconds)),
    )


def image_batch(image: Image.Image, size: tuple[int, int, int]) -> Tensor:
    """Resize an RGB image to `size` = (B, H, W) and repeat it: float32 [B, 3, H, W].

    Every second image is mirrored.
    """
    batch, height, width = size
    pixels = torch.from_numpy(np.array(image.resize((width, height)), np.float32)).permute(2, 0, 1)
    mirrored = pixels.flip(2)
    images = []
    for number in range(batch):
        images.append(pixels if number % 2 == 0 else mirrored)
    return torch.stack(images)


def check_deterministic(
    model: ExportModel, images: Tensor, expected: dict[str, NDArray[Any]]
) -> None:
    """Raise UsageError unless the model computes `expected` for these images again."""
    for name, x in model(images).items():
        error = relative_error(x.numpy(), expected[name])
        if error > TOLERANCE:
            raise UsageError(
                f'{type(model.model).__name__}: expected equal outputs of two calls, got {name} '
                f'that differ by {error:.2g}, because the model draws random numbers; LightHamHead '
                'does not with --cfg-options model.decode_head.ham_kwargs.rand_init=False'
            )


def record_program(model: ExportModel, sample: Tensor, is_dynamic: bool, opset: int | None) -> Any:
    """Record the model for `sample` [B, 3, H, W] as torch.onnx.ONNXProgram."""
    model_name = type(model.model).__name__
    output_names = list(model(sample))
    dynamic_shapes = None
    if is_dynamic:
        dynamic_shapes = {'images': {0: 'batch', 2: 'height', 3: 'width'}}
    logging.getLogger('torch.onnx').setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            program = torch.onnx.export(
                model,
                (sample,),
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                input_names=['images'],
                output_names=output_names,
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:  # torch's own, and any that the model raises under tracing
            raise UsageError(f'{model_name}: cannot be exported: {first_cause(error)}') from error
    if program is None:
        raise UsageError(f'{model_name}: cannot be exported: torch returned no program')
    written = program.model.opset_imports['']
    if opset is not None and written != opset:
        raise UsageError(
            f'--opset: this model cannot be written with opset {opset}; torch wrote {written}'
        )
    return program


def open_session(content: bytes) -> Any:
    """Load a program into onnxruntime, on the CPU with as many threads as PyTorch.

    Raises:
        UsageError: onnxruntime refuses it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = torch.get_num_threads()  # so that the two times can be compared
    try:
        return onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    except Exception as error:  # of onnxruntime's extension module
        raise UsageError(
            f'onnxruntime refuses the exported program: {first_cause(error)}'
        ) from error


def largest_error(
    session: Any, images: NDArray[Any], expected: dict[str, NDArray[Any]], tolerance: float
) -> float:
    """Run a session and return the largest `relative_error` of its outputs.

    Raises:
        UsageError: onnxruntime cannot run it, an output is not finite or its shape or values
            differ; names the output.
    """
    size = ' x '.join(str(side) for side in images.shape)
    try:
        found = session.run(list(expected), {'images': images})
    except Exception as error:  # of onnxruntime's extension module
        raise UsageError(
            f'onnxruntime cannot run the program for images {size}: {first_cause(error)}'
        ) from error
    errors = [0.0]
    for (name, reference), output in zip(expected.items(), found, strict=True):
        where = f'{name} in onnxruntime, for images {size}'
        if output.shape != reference.shape:
            raise UsageError(
                f'{where}: expected {list(reference.shape)} like PyTorch, got {list(output.shape)}'
            )
        if not np.isfinite(output).all():
            raise UsageError(
                f'{where}: NaN or infinite values, PyTorch in float32 has none; nothing was written'
            )
        error_of_output = relative_error(output, reference)
        if error_of_output > tolerance:
            raise UsageError(
                f'{where}: expected a relative error of at most {tolerance:g} against PyTorch, '
                f'got {error_of_output:.2g}; nothing was written'
            )
        errors.append(error_of_output)
    return max(errors)


def relative_error(found: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the largest difference relative to the reference's largest magnitude."""
    difference = np.abs(found.astype(np.float64) - reference).max(initial=0)
    magnitude = np.abs(reference).max(initial=0)
    return float(difference / max(magnitude, np.finfo(np.float32).tiny))


def first_cause(error: BaseException) -> str:
    """Return the type and first line of the error at the end of a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
