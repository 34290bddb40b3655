"""Evaluates a checkpoint and, with --show-dir, draws predictions beside the ground truth.

python tools/test.py CONFIG CHECKPOINT [--work-dir DIR] [--show-dir DIR]
bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [the same arguments]
"""

from __future__ import annotations

import argparse

from mmengine.runner import Runner

from mmpola.checkpoint import training as training_checkpoint
from mmpola.data.checks.check import check_data, print_notes
from mmpola.engine.config import add_common_arguments, draw_predictions, load_config, prepare_process
from mmpola.messages import run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of tools/train.py')
    parser.add_argument('--show-dir', help='draw predictions beside the ground truth into this folder')
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    cfg = load_config(args)
    checkpoint = training_checkpoint.read(args.checkpoint)
    print_notes(check_data(cfg, splits=('test',)))
    training_checkpoint.check_fits(checkpoint, cfg)
    if checkpoint.averaged:
        print(f'{args.checkpoint}: {training_checkpoint.AVERAGED}')
    cfg.load_from = args.checkpoint
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    prepare_process(cfg)
    Runner.from_cfg(cfg).test()


if __name__ == '__main__':
    run_main(main)
