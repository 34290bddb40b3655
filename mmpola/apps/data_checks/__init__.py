"""Checks of the data that a config names, before training: `check_data` is the entry.

`check.py` goes through the data sets of a config. `kinds.py` lists the kinds of data set that it
knows; `coco.py`, `label_maps.py` and `folders.py` inspect them. `coco_structure.py` checks the
lists and types of an annotation file.
"""

from mmpola.apps.data_checks.check import (
    Checked,
    check_data,
    print_notes,
    print_table,
    training_images,
)

__all__ = ['Checked', 'check_data', 'print_notes', 'print_table', 'training_images']
