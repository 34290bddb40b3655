"""Analyze images one after the other; write figures and JSON of each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from mmpola.apps.analysis.capture import LayerInputs, observe
from mmpola.apps.analysis.charts import draw_entropy, draw_gates, draw_parameters, draw_rank
from mmpola.apps.analysis.geometry import (
    Point,
    centre,
    image_geometry,
    token_at,
    token_stride,
    visible_pixels,
)
from mmpola.apps.analysis.layer_analysis import LayerAnalysis, analyze_layer
from mmpola.apps.analysis.maps import AnalyzedImage, draw_maps
from mmpola.apps.analysis.saving import DEFAULT_FORMATS, DEFAULT_STYLE, Style, save_figure
from mmpola.apps.image_reader import ImageReader, Size, network_input
from mmpola.messages import UsageError, printable
from mmpola.progress import progress
from mmpola.read_image import ImageFile, size_as_loaded

CHARTS = {
    'entropy': draw_entropy,
    'parameters': draw_parameters,
    'gates': draw_gates,
    'rank': draw_rank,
}
"""Charts of all layers of an image, by the names of their files."""


class AnalysisCounts(NamedTuple):
    """How many images were analyzed and skipped."""

    done: int
    skipped: int


def parse_points(arguments: Iterable[str]) -> list[Point]:
    """Read points that are written as X,Y.

    Raises:
        UsageError: an argument is not a pair of integers.
    """
    points = []
    for argument in arguments:
        match = re.fullmatch(r'(-?\d+),(-?\d+)', argument)
        if match is None:
            raise UsageError(f'--points: expected X,Y in pixels, such as 120,80, got {argument}')
        points.append((int(match[1]), int(match[2])))
    return points


def check_points(points: Sequence[Point], images: Iterable[ImageFile], reader: ImageReader) -> None:
    """Check that the network sees all points in every image that can be read.

    Raises:
        UsageError: a point is outside of an image, or of the part that the config's test transforms
            crop.
    """
    if not points:
        return

    @cache
    def visible_of(size: Size) -> tuple[int, int, int, int]:
        return visible_pixels(image_geometry(reader, size), size)

    for image in images:
        size = size_as_loaded(image.path)
        if size is None:  # reported when the image is read
            continue
        width, height = size
        try:
            left, top, right, bottom = visible_of((height, width))
        except UsageError:  # reported when the image is analyzed
            continue
        for x, y in points:
            if not (0 <= x < width and 0 <= y < height):
                raise UsageError(
                    f'--points: expected pixels of {image.path}, {width} x {height}, got {x},{y}'
                )
            if not (left <= x < right and top <= y < bottom):
                raise UsageError(
                    f'--points: expected pixels of {image.path} that the test transforms keep, x '
                    f'from {left} to {right - 1} and y from {top} to {bottom - 1}, got {x},{y}'
                )


def figure_paths(
    image: ImageFile, out: Path, names: Sequence[str], formats: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """Return the files of an image's results, for the layers `names`; the JSON is last."""
    figures = list(CHARTS)
    for name in names:
        figures.append(f'maps_{name}')
    paths = []
    for figure in figures:
        for suffix in formats:
            paths.append(image.output(out, f'/{figure}.{suffix}'))
    paths.append(image.output(out, '.json'))
    return paths


def analyze(
    model: Any,
    reader: ImageReader,
    images: list[ImageFile],
    out: Path,
    points: list[Point],
    names: Sequence[str],
    formats: Sequence[str] = DEFAULT_FORMATS,
    style: Style = DEFAULT_STYLE,
) -> AnalysisCounts:
    """Analyze all images, write the results and return how many there were.

    Images that cannot be read are named and skipped.

    Args:
        model: in eval mode; only its data_preprocessor and backbone run.
        reader: of its images.
        images: read in this order.
        out: folder of the results.
        points: of every image, checked by `check_points`; none: the centre of what the network
            sees.
        names: of the layers in the backbone, from `choose_layers`.
        formats: of the figures, from `mmpola.apps.analysis.saving.FORMATS`; each is written in all
            of them.
        style: of the figures.
    """

    def save(figure: Figure, folder: Path, name: str) -> None:
        for suffix in formats:
            save_figure(figure, folder / f'{name}.{suffix}', style)

    done = 0
    with progress('analyzing layers', len(images) * len(names)) as advance:
        for image in images:
            try:
                pixels = reader.read(image.path)
                inputs = network_input(model, reader, pixels)
            except UsageError as error:
                print(printable(f'skipped: {image.path}: {error}'), flush=True)
                advance(len(names))
                continue
            size = pixels.shape[:2]
            geometry = image_geometry(reader, size)
            chosen = points or [centre(geometry, size)]
            scene = AnalyzedImage(pixels[..., ::-1].copy(), chosen, geometry)
            folder = image.output(out, '')
            found = analyze_image(model.backbone, inputs, scene, names, folder, save, advance)
            found = {'image': str(image.path), **found}
            image.output(out, '.json').write_text(json.dumps(found, indent=1))
            done += 1
    return AnalysisCounts(done, len(images) - done)


def analyze_image(
    backbone: Any,
    inputs: Tensor,
    scene: AnalyzedImage,
    names: Sequence[str],
    folder: Path,
    save: Callable[[Figure, Path, str], None],
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Analyze one image, draw it, and return the content of its JSON.

    Args:
        backbone: of the model.
        inputs: what it reads for the image, [1, 3, H, W].
        scene: the image, with the points whose queries are drawn.
        names: of the layers.
        folder: of the figures.
        save: writes a figure into a folder under a name.
        advance: called with 1 after each layer.

    Raises:
        UsageError: the system refuses to write a figure.
    """
    input_height, input_width = inputs.shape[2:]

    def analyze_and_draw(layer: LayerInputs) -> LayerAnalysis:
        stride = token_stride((input_height, input_width), layer.grid)
        tokens = []
        for point in scene.points:
            tokens.append(token_at(point, scene.geometry, stride, layer.grid))
        found = analyze_layer(layer, tokens)
        save(draw_maps(scene, found, stride), folder, f'maps_{layer.name}')
        advance(1)
        return found

    layers = list(observe(backbone, inputs, analyze_and_draw, names).values())
    for name, draw in CHARTS.items():
        save(draw(layers), folder, name)
    height, width = scene.pixels.shape[:2]
    return {
        'width': width,
        'height': height,
        'input': {'height': input_height, 'width': input_width},
        'points': [list(point) for point in scene.points],
        'layers': {layer.name: layer.as_json() for layer in layers},
    }
