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

import torch
from check_data import check_data, print_notes
from going_on import check_resume, check_work_dir, newest_checkpoint
from mmengine.config import Config
from mmengine.runner import Runner
from runtime import UsageError, add_common_arguments, load_config, nodes, prepare_process, run_main

from mmpola.backbones.safe_pickle import PUBLISHED

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


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write --amp, --auto-scale-lr and --resume into the config.

    Raises:
        UsageError: --amp without a GPU, no auto_scale_lr in the config, or no such checkpoint to resume from.
    """
    if args.amp:
        if not torch.cuda.is_available():
            raise UsageError('--amp: mixed precision in fp16 needs a GPU, and torch finds none')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.loss_scale = 'dynamic'
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise UsageError(f'{args.config}: --auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
        if cfg.load_from and not Path(cfg.load_from).is_file():
            raise UsageError(f'--resume: {cfg.load_from}: no such checkpoint')


def check_pretrained(cfg: Config) -> None:
    """Raise UsageError if weights that the config starts from are not there, before data or model are touched."""
    for key, node in nodes(cfg.model, 'model'):
        start = node.get('init_cfg')
        if not isinstance(start, dict) or start.get('type') != 'Pretrained':
            continue
        path = start['checkpoint']
        if '://' not in path and not Path(path).is_file():
            raise UsageError(
                f'{path}: no such checkpoint ({key}.init_cfg.checkpoint; {PUBLISHED}); '
                f'train without it by --cfg-options {key}.init_cfg=None'
            )


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
