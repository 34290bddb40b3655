"""Analyze images one after the other and write figures and JSON for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

from mmpola.apps.analysis.capture import LayerInputs, observe
from mmpola.apps.analysis.figures import (
    Scene,
    draw_entropy,
    draw_gates,
    draw_maps,
    draw_parameters,
    draw_rank,
)
from mmpola.apps.analysis.saving import DEFAULT_FORMATS, Style, save_figure
from mmpola.apps.analysis.statistics import LayerAnalysis, analyze_layer
from mmpola.apps.prediction.files import ImageFile
from mmpola.apps.prediction.geometry import Point, centre, token_at, token_stride, visible_pixels
from mmpola.apps.prediction.predict import Outcome
from mmpola.apps.prediction.predictor import Batch, Predictor
from mmpola.messages import UsageError
from mmpola.progress import progress
from mmpola.read_image import size_as_loaded

CHARTS = {
    'entropy': draw_entropy,
    'parameters': draw_parameters,
    'gates': draw_gates,
    'rank': draw_rank,
}
"""Charts of all layers of an image, by the names of their files."""


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


def check_points(
    points: Sequence[Point], images: Iterable[ImageFile], predictor: Predictor
) -> None:
    """Check that the network sees all points in every image that can be read.

    Raises:
        UsageError: a point is outside of an image, or of the part that the config's test transforms
            crop.
    """
    geometry_of = cache(predictor.geometry)
    for image in images if points else ():
        size = size_as_loaded(image.path)
        if size is None:  # reported when the image is read
            continue
        width, height = size
        try:
            left, top, right, bottom = visible_pixels(geometry_of((height, width)), (height, width))
        except UsageError:  # reported when the image is analyzed
            continue
        for x, y in points:
            if not (0 <= x < width and 0 <= y < height):
                raise UsageError(
                    f'--points: expected pixels of {image.path}, {width} x {height}, got {x},{y}'
                )
            if not (left <= x < right and top <= y < bottom):
                raise UsageError(
                    f'--points: expected pixels of {image.path} that the test transforms keep, x from {left} to '
                    f'{right - 1} and y from {top} to {bottom - 1}, got {x},{y}'
                )


def output_suffixes(
    names: Sequence[str], formats: Sequence[str] = DEFAULT_FORMATS
) -> tuple[str, ...]:
    """Return what follows an image's name in the paths of its results, for the layers `names`; the JSON is last."""
    figures = [*CHARTS, *(f'maps_{name}' for name in names)]
    return (*(f'/{figure}.{suffix}' for figure in figures for suffix in formats), '.json')


def analyze(
    predictor: Predictor,
    images: list[ImageFile],
    out: Path,
    points: list[Point],
    names: Sequence[str],
    formats: Sequence[str] = DEFAULT_FORMATS,
    style: Style | None = None,
) -> Outcome:
    """Analyze all images, write the results and return how it went.

    Args:
        predictor: model and test pipeline; only the model's backbone runs.
        images: read in this order.
        out: folder of the results.
        points: of every image, checked by `check_points`; none: the centre of what the network
            sees.
        names: of the layers in the backbone, from `choose_layers`.
        formats: of the figures, from `mmpola.apps.analysis.saving.FORMATS`; each is written in all
            of them.
        style: of the figures.
    """
    done = 0

    def save(image: ImageFile, figure: Figure, name: str) -> None:
        for suffix in formats:
            save_figure(figure, image.output(out, f'/{name}.{suffix}'), style or Style())

    with progress('analyzing layers', len(images) * len(names)) as advance:
        for batch in predictor.batches(images, 1, lambda: advance(len(names))):
            analyze_image(predictor, batch, out, points, names, advance, save)
            done += 1
    return Outcome(done, len(images) - done)


def analyze_image(
    predictor: Predictor,
    batch: Batch,
    out: Path,
    points: list[Point],
    names: Sequence[str],
    advance: Callable[[int], None],
    save: Callable[[ImageFile, Figure, str], None],
) -> None:
    """Analyze the only image of a batch and write its files; the JSON comes last and marks them as complete.

    `save` writes a figure of the image under a name.

    Raises:
        UsageError: the system refuses to write a figure.
    """
    ((image, pixels, _),) = batch
    height, width = size = pixels.shape[:2]
    geometry = predictor.geometry(size)
    scene = Scene(pixels[..., ::-1].copy(), points or [centre(geometry, size)], geometry)
    inputs = predictor.network_input(batch)
    input_size = (inputs.shape[2], inputs.shape[3])

    def inspect(layer: LayerInputs) -> LayerAnalysis:
        stride = token_stride(input_size, layer.grid)
        found = analyze_layer(
            layer, [token_at(point, geometry, stride, layer.grid) for point in scene.points]
        )
        save(image, draw_maps(scene, found, stride), f'maps_{layer.name}')
        advance(1)
        return found

    layers = list(observe(predictor.model.backbone, inputs, inspect, names).values())
    for name, draw in CHARTS.items():
        save(image, draw(layers), name)
    described = {
        'image': str(image.path),
        'width': width,
        'height': height,
        'input': {'height': input_size[0], 'width': input_size[1]},
        'points': [list(point) for point in scene.points],
        'layers': {layer.name: layer.as_json() for layer in layers},
    }
    image.output(out, '.json').write_text(json.dumps(described, indent=1))
