"""Load the scripts of tools/ by their path and run them in this process."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

from mmengine.visualization import Visualizer

from mmpola.messages import run_main

TOOLS = Path(__file__).resolve().parents[2] / 'tools'


@cache
def load(name):
    """Import tools/`name`.py without running its main()."""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments):
    """Run tools/`name`.py with these arguments and return its exit status."""
    Visualizer._instance_dict.clear()  # of earlier runs in this process, which hooks would find
    before, sys.argv = sys.argv, [f'{name}.py', *map(str, arguments)]
    try:
        run_main(load(name).main)
    except SystemExit as stop:
        return stop.code
    finally:
        sys.argv = before
    return 0
