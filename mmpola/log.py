"""Where messages go: MMEngine's current logger where there is one, Python's logging otherwise."""

from __future__ import annotations

import logging

try:
    from mmengine.logging import print_log
except ModuleNotFoundError:
    print_log = None


def info(message: str) -> None:
    """Tell what was done, once, on the level that OpenMMLab's training logs show."""
    if print_log is None:
        logging.getLogger('mmpola').info(message)
    else:
        print_log(message, logger='current')
