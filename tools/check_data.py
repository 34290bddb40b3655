"""Checks the data that a config names: folders, annotations, classes, and every image and label map that they list.

    python tools/check_data.py CONFIG [--cfg-options KEY=VALUE …]

Prints a table of what is there. Exit status 2 and every problem, long lists shortened, if something is wrong.

train.py and test.py run the fast part of it first, which takes seconds on COCO: whether everything is there, what the
annotation files say, whether the classes are those of the config and the model, and the labels in some label maps.
"""

from __future__ import annotations

import argparse

from mmpola.data.checks.check import check_data, print_table
from mmpola.engine.config import add_common_arguments, load_config
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Check the data that a config names')
    parser.add_argument('config', help='config file')
    add_common_arguments(parser)
    print_table(check_data(load_config(parser.parse_args()), whole=True))


if __name__ == '__main__':
    run_main(main)
