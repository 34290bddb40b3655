"""Run torchrun, without its traceback if a process has said in one line what is wrong.

    python -m mmpola.engine.launch [options of torchrun] SCRIPT [arguments of SCRIPT]

A script ends with status 2 if its arguments or config are invalid. If the process that failed first
did so, this program ends with status 2 too; torchrun reports every other failure.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

INVALID_ARGUMENTS = 2
"""Exit status of a script whose arguments are invalid, by argparse and `messages.run_main`."""


def launch() -> None:
    """Run torchrun with the arguments of this program."""
    try:
        main()
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode != INVALID_ARGUMENTS:
            raise
        sys.exit(INVALID_ARGUMENTS)


if __name__ == '__main__':
    launch()
