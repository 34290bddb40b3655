"""Checks a config and the data that it names: model, folders, annotations, classes, every image.

    python tools/check_data.py CONFIG [--skip-checks NAME …] [--cfg-options KEY=VALUE …]

Builds the data sets as training does, loads every sample with the config's own pipeline, and
prints what training will learn from: images, and instances or pixels per class and split.
Pretrained weights are looked for, but not downloaded. If something is wrong, it prints a list of
problems, with long lists shortened, and exits with status 2; what is only suspicious is a line with
'warning:'. Each line ends with the name of its check, by which --skip-checks leaves it out.

train.py and test.py start with the same checks, but load only 32 samples of each data set.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.messages import run_main
from mmpola.openmmlab.checks import add_skip_argument, check_data
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.named_files import check_pretrained
from mmpola.openmmlab.config.read import add_options_argument, check_parts, load_config


def main() -> None:
    parser = argparse.ArgumentParser(description='Check a config and the data that it names')
    parser.add_argument('config', help='config file')
    add_skip_argument(parser)
    add_options_argument(parser)
    args = parser.parse_args()
    cfg = load_config(args)
    check_parts(cfg)
    model = validate_config(cfg)
    print(*check_data(cfg, whole=True, model=model).lines(), sep='\n')
    for line in check_pretrained(cfg.model, download=False):
        print(line)


if __name__ == '__main__':
    run_main(main)
