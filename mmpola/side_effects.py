"""Everything that mmpola changes in the Python process that uses it.

By importing a module:

    mmpola                    `sys.meta_path` gets a finder of `mmcv._ext`, for mmcv-lite
    mmpola.registry           MMEngine's registries get children of scope `mmpola`
    mmpola.layers, .ops       PyTorch gets the operators `torch.ops.mmpola`
    mmpola.timm               timm gets the models of `mmpola.zoo`; `torch.load` accepts the yacs
                              config in the authors' files, as an empty dict
    mmpola.openmmlab.config.read
                              MMEngine finds base configs `mmseg::…` by the module's name

In the scripts of `tools/`, which are the commands of `mmpola`:

    at the start              variables of OpenMP and `LOCAL_RANK` are set, unless they are already;
                              `sys.excepthook` names the extra that a missing package belongs to;
                              warnings about losses, drawn boxes and pinned memory are ignored
    training and testing      processes that are forked end when this one is killed
    while training            `mmpola.PreemptionHook` handles SIGINT, SIGTERM, SIGUSR1 and SIGHUP;
                              processes that are forked end at SIGTERM

Registrations and hooks are in their own modules; the functions below do the rest. docs/install.md
has the same list for users.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import TracebackType
from typing import Any

PACKAGE = Path(__file__).parent

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""The limit of a container: microseconds of CPU time, or 'max', per period of microseconds."""

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that the kernel sends a process when its parent dies."""


class MmcvOperators:
    """Finds `mmcv._ext` for mmcv-lite, if neither a compiled one nor `mmpola operators` has."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where `mmpola.openmmlab.mmcv.operators` is, for `mmcv._ext`."""
        if name != 'mmcv._ext':
            return None
        return spec_from_file_location(name, PACKAGE / 'openmmlab' / 'mmcv' / 'operators.py')


def find_mmcv_operators() -> None:
    """Let Python find `mmcv._ext` last of all."""
    sys.meta_path.append(MmcvOperators)


def read_authors_config() -> None:
    """Let `torch.load` read the authors' files, by an inert class for the yacs config in them.

    timm reads with `weights_only=True`, which would refuse them.
    """
    import torch

    from mmpola.checkpoint.safe_load import inert

    name = 'yacs.config.CfgNode'
    torch.serialization.add_safe_globals([(inert(name), name)])


def find_configs_of_mmseg() -> None:
    """Let MMEngine find base configs `mmseg::…` by the module, which a fork may have installed."""
    from mmengine.config.utils import MODULE2PACKAGE

    MODULE2PACKAGE['mmseg'] = 'mmseg'


def set_variables() -> None:
    """Set the variables of OpenMP, which torch reads when it is loaded, and of MMEngine.

    Waiting threads sleep instead of spinning, which makes training several times faster on cores
    that other programs use too. Variables that the user has set stay as they are.
    """
    os.environ.setdefault('OMP_NUM_THREADS', str(threads_of_process()))
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    os.environ.setdefault('GOMP_SPINCOUNT', '0')
    # MMEngine's DDP wrapper needs it; its launcher `mpi` does not set it
    local_rank = os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK', '0')
    os.environ.setdefault('LOCAL_RANK', local_rank)


def threads_of_process() -> int:
    """Return the usable cores divided by the processes that torchrun starts on this machine.

    torchrun itself sets one thread in each of several processes; tools/dist_run.sh asks this first.
    """
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    return max(1, usable_cores() // processes)


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


def name_missing_extras() -> None:
    """Let Python end with one line if a package of an extra is not installed."""
    sys.excepthook = _name_missing_extra


def _name_missing_extra(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the error that ends Python.

    Args:
        kind, error, trace: as `sys.excepthook` gets them.
    """
    from mmpola.extras import extra_of, install_command

    package = ''
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition('.')[0]
    extra = extra_of(package)
    if not extra:
        sys.__excepthook__(kind, error, trace)
        return
    print(f'error: {package} is not installed: {install_command(extra)}', file=sys.stderr)


def ignore_warnings_without_effect() -> None:
    """Ignore what mmdet, mmseg and PyTorch warn of where it has no effect."""
    warnings.filterwarnings('ignore', module='mm(det|seg)')  # about losses
    warnings.filterwarnings('ignore', "'pin_memory' argument is set")  # on a CPU
    warnings.filterwarnings('ignore', 'Warning: The .* is out of bounds')  # of drawn boxes
    warnings.filterwarnings('ignore', 'The shape of value will convert')  # of merged label maps


@cache
def end_children_with_this_process() -> None:
    """Make every process that is forked from now on end when its parent dies.

    When its parent is killed, a data loader's worker would wait for ever for a reader of its queue,
    and hold the parent's output open. If torchrun has started this process, it gets SIGTERM when
    torchrun dies. This needs Linux; elsewhere nothing is done.
    """
    if sys.platform != 'linux':
        return
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def note_parent() -> None:  # a child may fork too
        nonlocal parent
        parent = os.getpid()

    def end_with_parent(number: signal.Signals) -> None:
        failed = prctl(PR_SET_PDEATHSIG, number) != 0
        died_before = os.getppid() != parent
        if failed or died_before:
            os.kill(os.getpid(), number)

    os.register_at_fork(before=note_parent, after_in_child=lambda: end_with_parent(signal.SIGKILL))
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        parent = os.getppid()
        end_with_parent(signal.SIGTERM)
