"""Names for the results of a data set's images that no two of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmpola.images import name_results

WRITE_BY_STEM = {'IoUMetric', 'DepthMetric', 'SemSegMetric', 'CityscapesMetric'}
"""Metrics of mmseg and mmdet that write `output_dir`/STEM.png, and use an image's path for that.

mmdet's CityScapesMetric and CocoPanopticMetric also find the annotations by it.
"""


def image_names(dataset: Any) -> dict[str, Path]:
    """Return the path of each image's results, without a suffix, by the image's path.

    `name_results` names them. A data set without MMEngine's method `get_data_info` lists no images.
    """
    if not hasattr(dataset, 'get_data_info'):
        return {}
    infos = [dataset.get_data_info(index) for index in range(len(dataset))]
    images = sorted({str(info['img_path']) for info in infos if 'img_path' in info})
    if not images:
        return {}
    names = name_results([Path(image) for image in images])
    return dict(zip(images, names, strict=True))


def write_apart(loop: Any) -> None:
    """Let the metrics of a loop write files of their own for images that share a stem.

    The files are then below `output_dir` in the folders that the images have below their common
    one. Without such images they keep their names, which test servers expect.
    """
    for metric in loop.evaluator.metrics:
        kinds = {kind.__name__ for kind in type(metric).__mro__}
        if not kinds & WRITE_BY_STEM or not metric.output_dir:
            continue
        names = image_names(loop.dataloader.dataset)
        stems = {Path(image).stem for image in names}
        if len(stems) < len(names):
            _write_as(metric, names)


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
