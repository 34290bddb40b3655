"""The command `mmpola NAME ARGUMENTS…`, and what each script of `tools/` does first.

The command runs a script from a clone or a wheel. Nothing that loads torch is imported here: the
scripts first set variables that torch reads when it is loaded.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType

PACKAGE = Path(__file__).resolve().parent

CPU_QUOTA = Path('/sys/fs/cgroup/cpu.max')
"""The limit of a container: microseconds of CPU time, or 'max', per period of microseconds."""

SCRIPTS = {
    'train': ('train.py', 'train the model of a config'),
    'test': ('test.py', 'evaluate a checkpoint'),
    'predict': ('predict.py', 'draw and save predictions for images'),
    'analyze': ('analyze.py', 'draw what the attention of a model does'),
    'explore': ('explore.py', 'look at the attention of a model on a web page'),
    'check-data': ('check_data.py', 'check the data of a config'),
    'new': ('new.py', 'write a config for a folder of labelled images'),
    'split': ('split.py', 'divide images into training, validation and test'),
    'convert': ('convert_checkpoint.py', 'convert weights'),
    'export': ('export.py', 'write a model as ONNX'),
    'gpu': ('gpu.py', 'check the fused kernels on this GPU and switch them on'),
    'curves': ('curves.py', 'draw the curves of a training run'),
    'flops': ('get_flops.py', 'count parameters and multiply-accumulates'),
    'operators': ('operators.py', "let every program find mmcv's operators"),
}
"""Name of a command -> its script, and what it does."""

typed: list[str] = []
"""What the user typed to run a script of `tools/`, for its usage line; empty: its path."""

EPILOG = 'commands:\n' + '\n'.join(f'  {name:<16}{use}' for name, (_, use) in SCRIPTS.items())
EPILOG += (
    '\n\n`mmpola COMMAND --help` describes the arguments of a command. Configs of mmpola are\n'
)
EPILOG += 'named configs/NAME.py from anywhere, as in a clone.'


def repository_path(name: str) -> Path:
    """Return a file or folder of the repository, which a wheel carries in the package's `.mim`."""
    inside = PACKAGE / '.mim' / name
    if inside.exists():
        return inside
    return PACKAGE.parent / name


def missing_config(path: str) -> str:
    """Return the message for a config file that does not exist, with the names of ours near it."""
    ours = {config.stem: config for config in repository_path('configs').glob('*.py')}
    near = get_close_matches(Path(path).stem, ours)
    message = f'{path}: no such config file'
    if near:
        message += f'; did you mean {" or ".join(f"configs/{name}.py" for name in near)}?'
    return message


def run(command: str, arguments: list[str]) -> None:
    """Run the script of a command, as if the user had called the script.

    An argument `configs/NAME.py` means mmpola's config if the working directory has no such file.

    Raises:
        SystemExit: status 2 if there is no such command; otherwise as the script ends.
    """
    if command not in SCRIPTS:
        rule = f'expected one of {", ".join(SCRIPTS)}, got {command}'
        print(f'mmpola: {rule}', file=sys.stderr)
        sys.exit(2)
    script = str(repository_path(f'tools/{SCRIPTS[command][0]}'))
    script_arguments = []
    for argument in arguments:
        ours = repository_path(argument)
        if argument.startswith('configs/') and not Path(argument).exists() and ours.exists():
            argument = str(ours)
        script_arguments.append(argument)
    typed.append(f'mmpola {command}')
    sys.argv = [script, *script_arguments]
    runpy.run_path(script, run_name='__main__')


def prepare_script() -> None:
    """Check arguments, set variables, choose what to report: before torch is imported."""
    _check_arguments()
    set_variables()
    sys.excepthook = _name_missing_extra
    ignore_warnings_without_effect()


def _check_arguments() -> None:
    """Refuse a config that does not exist, before imports that take seconds.

    Usage lines name the command of `mmpola` if it runs the script.

    Raises:
        SystemExit: an argument that ends with .py names no file.
    """
    if Path(sys.argv[0]).parent.name != 'tools':
        return
    if typed:
        sys.argv[0] = typed[-1]
    for argument in sys.argv[1:]:
        if argument.endswith('.py') and '=' not in argument and not Path(argument).exists():
            print(f'error: {missing_config(argument)}', file=sys.stderr)
            sys.exit(2)


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


def _name_missing_extra(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the error that ends Python.

    Args:
        kind, error, trace: as `sys.excepthook` gets them.
    """
    from mmpola.openmmlab.install import extra_of, install_command

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
