"""The metric of segmenters, which keeps what each image adds to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric


@METRICS.register_module()
class KeptIoUMetric(IoUMetric):
    """mmseg's IoUMetric, from which mIoU has a standard error (sampling.py).

    Args:
        kept: the file that is written, integers [images, 2, classes]: the pixels of an image in
            which prediction and truth agree on a class, and those in which either of them has it.
            None: no file.
        arguments: of IoUMetric.
    """

    def __init__(self, *, kept: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kept = kept

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Write the file; return what IoUMetric returns."""
        if self.kept is not None:
            areas = [np.stack([agreed, either]) for agreed, either, _, _ in results]
            np.save(self.kept, np.stack(areas).astype(np.int64))
        metrics: dict[str, float] = super().compute_metrics(results)
        return metrics
