"""Checks of the data that a config names, before training: `check_data` is the entry.

`check.py` goes through the data sets of a config and fills in a `DatasetReport` (`report.py`) of
each. `coco.py` looks at an annotation file, `infos.py` at what a data set knows of its samples,
`samples.py` at what its pipeline loads. `verdicts.py` says what the counts mean, `evaluators.py`
compares the evaluators with the data.
"""

from mmpola.apps.data_checks.check import check_data
from mmpola.apps.data_checks.report import DatasetReport, print_notes, print_table

__all__ = ['DatasetReport', 'check_data', 'print_notes', 'print_table']
