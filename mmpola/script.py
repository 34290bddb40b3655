"""Imported by every script before anything else: Ctrl-C, text and OpenMP, from the first import on.

Importing torch, MMEngine and mmdet takes seconds, before `run_main` is called.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import mmpola.openmp  # noqa: F401  before torch, which reads the variables that it sets


def prepare() -> None:
    """End with one line on Ctrl-C until `run_main` is called, and without a home directory; print in any locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, 'reconfigure'):
            stream.reconfigure(errors='backslashreplace')
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    try:
        Path.home()
    except RuntimeError:  # MMEngine cannot be imported: yapf looks for its cache
        sys.exit('error: HOME: expected a folder, got none, and this user has no home directory; set HOME')


def _end(number: int, frame: Any) -> None:
    os.write(2, b'interrupted\n')
    os._exit(130)  # `messages.CTRL_C`; some packages take an exception for a failed import


if 'torch' not in sys.modules:  # else this is no script: a test has loaded one
    prepare()
