"""Checks a config and the data that it names: model, folders, annotations, classes, every image.

    python tools/check_data.py CONFIG [--cfg-options KEY=VALUE …]

Reads every image and label map, and runs one sample of each data set through its pipeline. Prints
what each data set holds. If something is wrong, it prints a list of problems, with long lists
shortened, and exits with status 2.

train.py and test.py start with a part of it: whether the model can be built, whether all files
exist, whether training can read the annotations, whether the classes match the config and the
model, and whether labels are in range in a sample of the label maps.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse

from mmpola.apps.data_checks import check_data, print_table
from mmpola.engine.config import add_options_argument, load_config
from mmpola.engine.validate import validate_config
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Check a config and the data that it names')
    parser.add_argument('config', help='config file')
    add_options_argument(parser)
    args = parser.parse_args()
    cfg = load_config(args)
    validate_config(cfg)
    print_table(check_data(cfg, whole=True))


if __name__ == '__main__':
    run_main(main)
