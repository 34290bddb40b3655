"""Check the data sets of the Long Range Arena, whose constructors read and check their files."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmpola.apps.data_checks.report import DatasetReport, add_line


def check_sequences(dataset: Any, report: DatasetReport) -> None:
    """Fill in the report of a `SequenceDataset`: its samples, and classes without samples."""
    classes = dataset.metainfo['classes']
    report.classes = classes
    report.images = len(dataset)
    report.annotations = len(dataset)
    report.warnings += dataset.left_out
    report.notes += dataset.notes
    counts = np.bincount(dataset.samples.labels, minlength=len(classes))
    absent = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    add_line(report.notes, f'{dataset.root}: classes without samples', absent)
