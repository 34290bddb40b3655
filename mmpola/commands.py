"""The command `mmpola NAME ARGUMENTS…`, which runs a script of `tools/` from a clone or a wheel.

Nothing that loads torch is imported here: the scripts first set variables that torch reads when it
is loaded.
"""

from __future__ import annotations

import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent

SCRIPTS = {
    'train': ('train.py', 'train the model of a config'),
    'test': ('test.py', 'evaluate a checkpoint'),
    'predict': ('predict.py', 'draw and save predictions for images'),
    'analyze': ('analyze.py', 'draw what the attention of a model does'),
    'explore': ('explore.py', 'look at the attention of a model on a web page'),
    'check-data': ('check_data.py', 'check the data of a config'),
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
