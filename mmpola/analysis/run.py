"""Analyse images one after the other and write figures and JSON for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from mmpola.analysis.capture import LayerInputs, observe
from mmpola.analysis.charts import draw_entropy, draw_gates, draw_parameters, draw_rank
from mmpola.analysis.layer import LayerAnalysis, analyse_layer
from mmpola.analysis.maps import Scene, draw_maps
from mmpola.analysis.points import Point, centre, token_at, token_stride
from mmpola.engine.curves import save
from mmpola.engine.progress import progress
from mmpola.prediction import ImageFile, Predictor
from mmpola.prediction.predictor import Batch

FORMATS = ('.png', '.svg')
CHARTS = {'entropy': draw_entropy, 'parameters': draw_parameters, 'gates': draw_gates, 'rank': draw_rank}
"""Charts of all layers of an image, by the names of their files."""


class Outcome(NamedTuple):
    """How many images were analysed and how many could not be read."""

    done: int
    skipped: int


def output_suffixes(names: Sequence[str]) -> tuple[str, ...]:
    """Return what follows an image's name in the paths of its results, for the layers `names`; the JSON is last."""
    figures = [*CHARTS, *(_map_file(name) for name in names)]
    return (*(f'/{figure}{suffix}' for figure in figures for suffix in FORMATS), '.json')


def analyse(
    predictor: Predictor, images: list[ImageFile], out: Path, points: list[Point], names: Sequence[str]
) -> Outcome:
    """Analyse all images, write the results and return how it went.

    Args:
        predictor: model and test pipeline; only the model's backbone runs.
        images: read in this order.
        out: folder of the results.
        points: of every image, checked by `check_points`; none: the centre of what the network sees.
        names: of the layers in the backbone, from `choose_layers`.
    """
    done = 0
    with progress('analysing layers', len(images) * len(names)) as advance:

        def skip(image: ImageFile, reason: str) -> None:
            print(f'skipped: {image.path}: {reason}', flush=True)
            advance(len(names))

        for batch in predictor.batches(images, 1, skip):
            analyse_image(predictor, batch, out, points, names, lambda: advance(1))
            done += 1
    return Outcome(done, len(images) - done)


def analyse_image(
    predictor: Predictor,
    batch: Batch,
    out: Path,
    points: list[Point],
    names: Sequence[str],
    layer_done: Callable[[], None],
) -> None:
    """Analyse the only image of a batch and write its files; the JSON comes last and marks them as complete.

    Raises:
        UsageError: the image is too narrow for the test transforms; nothing has been written.
    """
    ((image, pixels, _),) = batch
    geometry = predictor.geometry(pixels.shape[:2])
    scene = Scene(pixels[..., ::-1].copy(), points or [centre(geometry, pixels.shape[:2])], geometry)
    inputs = predictor.network_input(batch)
    input_size = (inputs.shape[2], inputs.shape[3])

    def inspect(layer: LayerInputs) -> LayerAnalysis:
        stride = token_stride(input_size, layer.grid)
        found = analyse_layer(layer, [token_at(point, geometry, stride, layer.grid) for point in scene.points])
        _save(draw_maps(scene, found, stride), image, out, _map_file(layer.name))
        layer_done()
        return found

    layers = list(observe(predictor.model.backbone, inputs, inspect, names).values())
    for name, draw in CHARTS.items():
        _save(draw(layers), image, out, name)
    described = describe(image, scene, input_size, layers)
    image.output(out, '.json').write_text(json.dumps(described, indent=1))


def describe(
    image: ImageFile, scene: Scene, input_size: tuple[int, int], layers: Sequence[LayerAnalysis]
) -> dict[str, Any]:
    """Return what the JSON of an image contains."""
    height, width = scene.pixels.shape[:2]
    return {
        'image': str(image.path),
        'width': width,
        'height': height,
        'input': {'height': input_size[0], 'width': input_size[1]},
        'points': [list(point) for point in scene.points],
        'layers': {layer.name: layer.as_json() for layer in layers},
    }


def _map_file(layer: str) -> str:
    return f'maps_{layer}'


def _save(figure: Figure, image: ImageFile, out: Path, name: str) -> None:
    """Write a figure of an image in all formats."""
    for suffix in FORMATS:
        path = image.output(out, f'/{name}{suffix}')
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
