"""What every script does first: set the variables of OpenMP, and name what is missing in one line.

torch reads the variables when it is loaded. Waiting threads sleep instead of spinning, which makes
training several times faster on cores that other programs use too. The number of threads is the
number of cores that this process may use, divided by the number of processes that torchrun started
on this machine. Variables that the user has set stay as they are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from mmpola import commands

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""The limit of a container: microseconds of CPU time, or 'max', per period of microseconds."""

EXTRA_OF_PACKAGE = {
    'cv2': 'openmmlab',
    'matplotlib': 'openmmlab',
    'mmcv': 'openmmlab',
    'mmdet': 'openmmlab',
    'mmengine': 'openmmlab',
    'mmseg': 'openmmlab',
    'pycocotools': 'openmmlab',
    'rich': 'openmmlab',
    'onnx': 'export',
    'onnxruntime': 'export',
    'onnxscript': 'export',
    'gradio': 'explore',
}
"""Package that scripts import -> the extra of mmpola that brings it."""


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    if hasattr(os, 'sched_getaffinity'):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota
        return cores


def set_environment() -> None:
    """Set the variables of OpenMP that are not set yet."""
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    threads = max(1, usable_cores() // processes)
    os.environ.setdefault('OMP_NUM_THREADS', str(threads))
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    os.environ.setdefault('GOMP_SPINCOUNT', '0')


def name_missing_extra(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print one line for a package of an optional extra that is not installed.

    Args:
        kind, error, trace: as `sys.excepthook` gets them.
    """
    package = ''
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition('.')[0]
    if package not in EXTRA_OF_PACKAGE:
        sys.__excepthook__(kind, error, trace)
        return
    command = f"pip install -e '.[{EXTRA_OF_PACKAGE[package]}]'"
    print(f'error: {package} is not installed: {command}', file=sys.stderr)


def check_arguments() -> None:
    """Refuse a config that does not exist, before imports that take seconds.

    Usage lines name the command of `mmpola` if it runs the script.

    Raises:
        SystemExit: an argument that ends with .py names no file.
    """
    if Path(sys.argv[0]).parent.name != 'tools':
        return
    if commands.typed:
        sys.argv[0] = commands.typed[-1]
    for argument in sys.argv[1:]:
        if argument.endswith('.py') and '=' not in argument and not Path(argument).exists():
            print(f'error: {commands.missing_config(argument)}', file=sys.stderr)
            sys.exit(2)


check_arguments()
set_environment()
sys.excepthook = name_missing_extra
