"""Analyze images one after the other; write figures and JSON of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from mmpola.files import write_atomically
from mmpola.images import ImageFile
from mmpola.messages import UsageError
from mmpola.openmmlab.predict.reader import ImageReader
from mmpola.papers.analysis.capture import LayerInputs, observe
from mmpola.papers.analysis.figures import CHARTS, draw_maps, draw_sorted, save_figure
from mmpola.papers.analysis.layer_analysis import LayerAnalysis, analyze_layer
from mmpola.papers.analysis.scene import Point, Scene, open_scene


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
        match = re.fullmatch(r'(\d+),(\d+)', argument)
        if match is None:
            raise UsageError(f'--points: expected X,Y in pixels, such as 120,80, got {argument}')
        points.append((int(match[1]), int(match[2])))
    return points


def analyze(
    model: Any,
    reader: ImageReader,
    images: list[ImageFile],
    out: Path,
    points: list[Point],
    names: Sequence[str],
) -> AnalysisCounts:
    """Analyze all images, write the results and return how many there were.

    Prints for each image which figure to open first. Images that cannot be read are named and
    skipped.

    Args:
        model: in eval mode; only its data_preprocessor and backbone run.
        reader: of its images.
        images: read in this order.
        out: folder of the results.
        points: of every image; none: the centre of what the network sees.
        names: of the layers in the backbone, from `choose_layers`.

    Raises:
        UsageError: the network does not see a point of an image.
    """
    done = 0
    for image in images:
        try:
            scene = open_scene(model, reader, image.path)
        except UsageError as error:
            print(f'skipped: {image.path}: {error}', flush=True)
            continue
        chosen = points or [scene.centre]
        try:
            scene.check_points(chosen)
        except UsageError as error:
            raise UsageError(f'--points: {image.path}: {error}') from None
        folder = image.output(out, '')
        found = {'image': str(image.path), **analyze_image(model, scene, chosen, names, folder)}
        write_atomically(image.output(out, '.json'), json.dumps(found, indent=1))
        maps = folder / f'maps_{names[-1]}.png'
        print(f'{image.path}: what its queries read in the last layer: {maps}', flush=True)
        done += 1
    return AnalysisCounts(done, len(images) - done)


def analyze_image(
    model: Any, scene: Scene, points: Sequence[Point], names: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Analyze one image, draw its figures, and return the content of its JSON.

    Args:
        model: in eval mode; only its backbone runs.
        scene: the image.
        points: pixels whose queries are drawn, at least one.
        names: of the layers.
        folder: of the figures.
    """

    def analyze_and_draw(layer: LayerInputs) -> LayerAnalysis:
        found = analyze_layer(layer, scene.tokens(points, layer.grid))
        side = scene.token_side(layer.grid) * layer.sr_ratio
        maps = draw_maps(scene, points, found.maps, side, layer.name)
        save_figure(maps, folder, f'maps_{layer.name}')
        bar.update()
        return found

    with tqdm(total=len(names), desc=folder.name, unit='layer') as bar:
        layers = list(observe(model.backbone, scene.inputs, analyze_and_draw, names).values())
    save_figure(draw_sorted(layers), folder, 'sorted')
    for name, draw in CHARTS.items():
        save_figure(draw(layers), folder, name)
    height, width = scene.pixels.shape[:2]
    input_height, input_width = scene.inputs.shape[2:]
    return {
        'width': width,
        'height': height,
        'input': {'height': input_height, 'width': input_width},
        'points': [list(point) for point in points],
        'layers': {layer.name: layer.as_json() for layer in layers},
    }
