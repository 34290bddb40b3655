"""Trains whatever a config describes.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [auto|CHECKPOINT]] [--overwrite] [--amp] [--auto-scale-lr]
    bash tools/dist_train.sh CONFIG GPUS [the same arguments]

Data and pretrained weights are checked before a model is built. Progress, losses and checkpoints go to the work dir,
which belongs to one config; checkpoints in it are written over only on going on from the newest, or by --overwrite.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mmengine.runner import Runner

from mmpola.data.checks.check import check_data, print_notes
from mmpola.engine.config import add_common_arguments, apply_arguments, check_pretrained, load_config, prepare_process
from mmpola.engine.resume import check_resume, check_work_dir, newest_checkpoint
from mmpola.messages import run_main

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='go on from a checkpoint, or from the newest one in the work dir (no value, or auto)',
    )
    parser.add_argument('--overwrite', action='store_true', help='write over the checkpoints of an earlier training')
    parser.add_argument('--amp', action='store_true', help='automatic mixed precision (fp16)')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by the real batch over the config's base batch",
    )
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    cfg = load_config(args)
    apply_arguments(cfg, args)
    check_work_dir(cfg, args.overwrite)
    print_notes(check_data(cfg, splits=('train', 'val')))
    if cfg.get('resume') and (finished := check_resume(cfg)):
        print(finished)
        return
    if not (cfg.get('resume') and cfg.get('load_from')):
        check_pretrained(cfg)
    if args.overwrite and not cfg.get('resume'):  # else a later --resume would go on from the earlier training's end
        (Path(cfg.work_dir) / 'last_checkpoint').unlink(missing_ok=True)
    prepare_process(cfg)
    if cfg.get('resume') and not cfg.get('load_from'):
        print(f'{cfg.work_dir}: no checkpoint to go on from yet, training begins')
    try:
        Runner.from_cfg(cfg).train()
    except KeyboardInterrupt:
        newest = newest_checkpoint(cfg)
        print(f'interrupted; {f"--resume goes on from {newest}" if newest else "nothing saved yet"}', file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == '__main__':
    run_main(main)
