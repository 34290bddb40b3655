"""Evaluates a checkpoint and, with --show-dir, draws predictions next to the ground truth.

python tools/test.py CONFIG CHECKPOINT [--work-dir DIR] [--show-dir DIR] [--compile [BACKEND]]
bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [the same arguments]
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse

from mmpola.checkpoint.training import AVERAGED, check_fits, read
from mmpola.data.checks import check_data, print_notes
from mmpola.engine.config import (
    add_common_arguments,
    add_compile_argument,
    draw_predictions,
    load_config,
    request_compilation,
)
from mmpola.engine.mistakes import refuse_mistakes
from mmpola.engine.run import evaluate
from mmpola.messages import run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of tools/train.py: a path, URL or name, see docs/weights.md')
    parser.add_argument('--show-dir', help='draw predictions next to the ground truth into this folder')
    add_compile_argument(parser)
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    cfg = load_config(args)
    request_compilation(cfg, args.compile)
    refuse_mistakes(cfg)
    checkpoint = read(args.checkpoint)
    print_notes(check_data(cfg, splits=('test',)))
    check_fits(checkpoint, cfg)
    if checkpoint.averaged:
        print(f'{args.checkpoint}: {AVERAGED}')
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    evaluate(cfg, checkpoint)


if __name__ == '__main__':
    run_main(main)
