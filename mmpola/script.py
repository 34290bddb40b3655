"""What every script does first: check arguments, set variables, choose what to report."""

from __future__ import annotations

import sys
from pathlib import Path

from mmpola import commands
from mmpola.side_effects import (
    ignore_warnings_without_effect,
    name_missing_extras,
    set_variables,
)


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
set_variables()
name_missing_extras()
ignore_warnings_without_effect()
