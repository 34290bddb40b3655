"""Trains the model of a config.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [auto|CHECKPOINT]] [--overwrite] [--auto-scale-lr]
                                  [--amp [float16|bfloat16]] [--compile [BACKEND]]
    bash tools/dist_train.sh CONFIG GPUS [the same arguments]

Config, data and pretrained weights are checked before the model is built. Logs and checkpoints go
to the work dir, which belongs to one config; checkpoints in it are overwritten only when resuming
from the newest, or with --overwrite.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse

from mmpola.apps.data_checks import check_data, print_notes, training_images
from mmpola.engine.config import (
    add_common_arguments,
    add_compile_argument,
    apply_arguments,
    load_config,
    request_compilation,
)
from mmpola.engine.maps import check_batch_norm
from mmpola.engine.resume import decide_resume, finished
from mmpola.engine.schedule_advice import schedule_advice
from mmpola.engine.train import train
from mmpola.engine.validate import validate_config
from mmpola.messages import run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from this checkpoint; without a value, or with auto, from the newest one in the work dir',
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite the checkpoints of an earlier run'
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='float16',
        choices=('float16', 'bfloat16'),
        help='automatic mixed precision: float16, the default, needs a GPU; bfloat16 is for classifiers, '
        'segmenters and sequences',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by the ratio of the actual batch size to the config's base batch size",
    )
    add_compile_argument(parser)
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    cfg = load_config(args)
    apply_arguments(cfg, args)
    request_compilation(cfg, args.compile)
    model = validate_config(cfg)
    check_batch_norm(cfg, model)
    resume = decide_resume(cfg, args.overwrite, model)
    if resume is not None and (progress := finished(resume, cfg)):
        print(f'{resume.path}: training is finished: {progress}')
        return
    checked = check_data(cfg, splits=('train', 'val'))
    print_notes(checked)
    for line in schedule_advice(cfg, training_images(cfg, checked)):
        print(line)
    train(cfg, model, resume, args.overwrite)


if __name__ == '__main__':
    run_main(main)
