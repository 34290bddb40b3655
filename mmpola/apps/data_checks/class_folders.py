"""Check class folders: a folder of images per class, read by `mmpola.ClassFolders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmpola.apps.data_checks.report import DatasetReport, check_files
from mmpola.messages import first_line
from mmpola.read_image import rgb_image


def check_class_folders(dataset: Any, report: DatasetReport, whole: bool) -> None:
    """Fill in the report of a `ClassFolders`, whose constructor has checked folders and classes.

    Args:
        dataset: the data set.
        report: filled in.
        whole: decode every image; else none is opened.
    """
    report.classes = dataset.metainfo['classes']
    report.images = len(dataset)
    report.annotations = len(dataset)

    def broken(index: int) -> str | None:
        path = dataset.get_data_info(index)['img_path']
        try:
            rgb_image(Path(path).read_bytes())
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError and more
            return f'{path} ({first_line(error)})'
        return None

    if whole:
        rule = f'{dataset.root}: images that cannot be read'
        check_files(report, 'images', rule, range(len(dataset)), broken)
