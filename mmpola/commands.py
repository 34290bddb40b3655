"""The command `mmpola NAME ARGUMENTS…`, which runs a script of `tools/` from a clone or a wheel.

Nothing that loads torch is imported here: the scripts first set variables that torch reads when it
is loaded.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent

SCRIPTS = {
    'train': 'train.py',
    'test': 'test.py',
    'predict': 'predict.py',
    'analyze': 'analyze.py',
    'explore': 'explore.py',
    'check-data': 'check_data.py',
    'convert': 'convert_checkpoint.py',
    'export': 'export.py',
    'flops': 'get_flops.py',
}
"""Name of a command -> script."""

USAGE = f"""mmpola [--openmmlab]
       mmpola COMMAND ARGUMENTS…

Without a command, mmpola reports what this environment can be used for. COMMAND is one of
{', '.join(SCRIPTS)}.
`mmpola COMMAND --help` describes its arguments. Configs of mmpola are named configs/NAME.py from
anywhere, as in a clone."""


def repository_path(name: str) -> Path:
    """Return a file or folder of the repository, which a wheel carries in the package's `.mim`."""
    inside = PACKAGE / '.mim' / name
    if inside.exists():
        return inside
    return PACKAGE.parent / name


def run(command: str, arguments: list[str]) -> None:
    """Run the script of a command, as if the user had called the script.

    An argument `configs/NAME.py` means mmpola's config if the working directory has no such file.

    Raises:
        SystemExit: status 2 if there is no such command; otherwise as the script ends.
    """
    if command not in SCRIPTS:
        from mmpola.messages import suggestion

        rule = f'expected one of {", ".join(SCRIPTS)}, got {command}'
        print(f'mmpola: {rule}{suggestion(command, SCRIPTS)}', file=sys.stderr)
        sys.exit(2)
    script = str(repository_path(f'tools/{SCRIPTS[command]}'))
    script_arguments = []
    for argument in arguments:
        if argument.startswith('configs/') and not Path(argument).exists():
            argument = str(repository_path(argument))
        script_arguments.append(argument)
    sys.argv = [script, *script_arguments]
    runpy.run_path(script, run_name='__main__')
