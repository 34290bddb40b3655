"""Evaluates a checkpoint and, with --show-dir, draws predictions beside the ground truth.

python tools/test.py CONFIG CHECKPOINT [--work-dir DIR] [--show-dir DIR]
bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [the same arguments]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import training_checkpoint
from check_data import check_data, print_notes
from mmengine.config import Config
from mmengine.runner import Runner
from runtime import UsageError, add_common_arguments, load_config, prepare_process, run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of tools/train.py')
    parser.add_argument('--show-dir', help='draw predictions beside the ground truth into this folder')
    add_common_arguments(parser)
    return parser.parse_args()


def draw_predictions(cfg: Config, folder: str) -> None:
    """Make the config's visualisation hook write one picture per test image below `folder`.

    Raises:
        UsageError: the config has no such hook.
    """
    hook = cfg.default_hooks.get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    folder = str(Path(folder).resolve())  # relative folders would be joined to the work dir and a time stamp
    hook.update(draw=True, interval=1)
    if cfg.default_scope == 'mmdet':
        hook.test_out_dir = folder
    else:  # mmseg's hook leaves the place to the visualiser: FOLDER/vis_data/vis_image
        cfg.visualizer.save_dir = folder


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
