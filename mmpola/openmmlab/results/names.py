"""Names for the results of a data set's images that no two of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmpola.images import name_results


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
