"""torchrun, without its traceback where the processes have said in one line what is wrong.

    python -m mmpola.engine.launch [options of torchrun] SCRIPT [arguments of SCRIPT]

If the process that failed first has ended with status 2, as scripts do whose arguments or config
are invalid, so does this program. Every other failure is reported as torchrun reports it.
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
