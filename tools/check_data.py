"""Checks the data that a config names: folders, annotations, classes, every image and every label map.

    python tools/check_data.py CONFIG [--cfg-options KEY=VALUE …]

Prints a table of counts. Exit status 2 and a list of problems, with long lists shortened, if something is wrong.

train.py and test.py start with the fast part, which takes seconds on COCO: whether all files exist, whether the
annotations are consistent, whether the classes match the config and the model, and the labels in a sample of the label
maps.
"""

from __future__ import annotations

import argparse

from mmpola.data.checks import check_data, print_table
from mmpola.engine.config import add_common_arguments, load_config
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Check the data that a config names')
    parser.add_argument('config', help='config file')
    add_common_arguments(parser)
    print_table(check_data(load_config(parser.parse_args()), whole=True))


if __name__ == '__main__':
    run_main(main)
