"""Checks of the data that a config names, before training: `check_data` is the entry.

`check.py` goes through the data sets of a config. `coco.py`, `label_maps.py` and `class_folders.py`
check one kind each and fill in a `DatasetReport` (`report.py`).
"""

from mmpola.apps.data_checks.check import check_data
from mmpola.apps.data_checks.report import DatasetReport, print_notes, print_table

__all__ = ['DatasetReport', 'check_data', 'print_notes', 'print_table']
