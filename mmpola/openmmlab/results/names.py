"""Names for the results of a data set's images that no two of them share."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from mmpola.images import name_results

BY_BASE_NAME = ('IoUMetric', 'DepthMetric', 'SemSegMetric', 'CityscapesMetric')
"""Metrics of mmseg and mmdet that write `output_dir`/STEM.png, and use an image's path for that.

mmdet's CityScapesMetric and CocoPanopticMetric also find the annotations by it.
"""


def image_names(dataset: Any) -> dict[str, Path]:
    """Return the path of each image's results, without a suffix, by the image's path.

    It is the image's path inside the common folder of all, see `name_results`. Nothing is returned
    for a data set that has no method `get_data_info`, as those of MMEngine have.
    """
    if not hasattr(dataset, 'get_data_info'):
        return {}
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    paths = {str(info['img_path']) for info in infos if 'img_path' in info}
    if not paths:
        return {}
    images = {path: Path(os.path.abspath(path)) for path in sorted(paths)}
    common = Path(os.path.commonpath([image.parent for image in images.values()]))
    names = name_results([(image, common) for image in images.values()])
    return dict(zip(images, names, strict=True))


def whole_path(image: str) -> Path:
    """Return the path of the results of an image that the data set does not list."""
    path = Path(os.path.abspath(image))
    return path.relative_to(path.anchor)


def write_apart(loop: Any) -> None:
    """Let the metrics of a loop write files of their own for images that share a base name.

    The files are then below `output_dir` in the folders that the images have below their common
    one. Without such images they keep their names, which test servers expect.
    """
    metrics = [metric for metric in loop.evaluator.metrics if _writes(metric)]
    if not metrics:
        return
    names = image_names(loop.dataloader.dataset)
    stems = Counter(Path(image).stem for image in names)
    if max(stems.values(), default=0) > 1:
        for metric in metrics:
            _write_as(metric, names)


def _writes(metric: Any) -> bool:
    kinds = [kind.__name__ for kind in type(metric).__mro__]
    return not set(BY_BASE_NAME).isdisjoint(kinds) and bool(metric.output_dir)


def _write_as(metric: Any, names: dict[str, Path]) -> None:
    """Give the images that a metric processes other paths, and each folder its own output."""
    process = metric.process
    folder = Path(metric.output_dir)

    def process_apart(data_batch: Any, data_samples: Any) -> None:
        for sample in data_samples:
            name = names[sample['img_path']]
            output = folder / name.parent
            output.mkdir(parents=True, exist_ok=True)
            metric.output_dir = str(output)
            # The metric drops a suffix, and a name may end with that of its image.
            process(data_batch, [{**sample, 'img_path': f'{name}.image'}])
        metric.output_dir = str(folder)

    metric.process = process_apart
