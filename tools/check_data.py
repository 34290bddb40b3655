"""Checks a config and the data that it names: model, folders, annotations, classes, every image.

    python tools/check_data.py CONFIG [--strict] [--cfg-options KEY=VALUE …]

Reads every image and label map, and runs one sample of each data set through its pipeline. Prints
a table of what the loaders return, and warns of what they drop, such as boxes without area. If
something is wrong, it prints a list of problems, with long lists shortened, and exits with
status 2. With --strict, what a loader drops is wrong.

train.py and test.py start with the fast part, which takes seconds on COCO: whether the model can be
built, whether all files exist, whether the annotations are consistent and hold what the model
needs, whether the classes match the config and the model, and the labels in a sample of the label
maps.
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
    parser.add_argument(
        '--strict', action='store_true', help='treat what a loader drops as an error'
    )
    add_options_argument(parser)
    args = parser.parse_args()
    cfg = load_config(args)
    validate_config(cfg)
    print_table(check_data(cfg, whole=True, strict=args.strict))


if __name__ == '__main__':
    run_main(main)
