"""Report what this environment can be used for, or run a script of mmpola.

    mmpola [--openmmlab]           or: python -m mmpola [--openmmlab]
    mmpola COMMAND ARGUMENTS…      or: torchrun … -m mmpola COMMAND …

A line of the report that is marked `ok` works, `--` is a package that is not installed, and `!!`
must be fixed: the exit status is then 1. Lines that are not `ok` end with their fix. With
--openmmlab, which tools/install.sh passes, all packages are needed. The commands are in
mmpola/command.py.
"""

from __future__ import annotations

import argparse
import sys

from mmpola import command
from mmpola.openmmlab.install import report


def main() -> int:
    """Run a command, or print the report and return the exit status."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith('-'):
        command.run(sys.argv[1], sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        prog='mmpola',
        description='Report what this environment can be used for, or run a script of mmpola.',
        epilog=command.EPILOG,
        usage='mmpola [--openmmlab]\n       mmpola COMMAND ARGUMENTS…',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--openmmlab', action='store_true', help='fail if a package of OpenMMLab is missing'
    )
    args = parser.parse_args()
    return report(args.openmmlab)


if __name__ == '__main__':
    sys.exit(main())
