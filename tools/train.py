"""Trains the model of a config.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [auto|CHECKPOINT]] [--overwrite]
                                 [--amp [float16|bfloat16]] [--auto-scale-lr] [--compile [BACKEND]]
                                 [--skip-checks NAME …] [--cfg-options KEY=VALUE …]
    bash tools/dist_train.sh CONFIG GPUS [the same arguments]

Model, data and pretrained weights are checked before training starts. Logs and checkpoints go
to the work dir, which belongs to one config; checkpoints in it are overwritten only when resuming
from the newest, or with --overwrite.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.kernels.gate import ensure_checked
from mmpola.messages import run_main
from mmpola.openmmlab.checks import add_skip_argument, check_data
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.named_files import check_pretrained
from mmpola.openmmlab.config.read import (
    add_compile_argument,
    add_options_argument,
    check_parts,
    load_config,
    request_compilation,
    scale_learning_rate,
    training_dtype,
    use_mixed_precision,
)
from mmpola.openmmlab.install import mmcv_problem
from mmpola.openmmlab.processes import print_once
from mmpola.openmmlab.run.train import locked, train
from mmpola.openmmlab.start.choose import AUTO, decide_resume


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--work-dir', help='folder for logs and checkpoints (default: work_dirs/CONFIG_NAME)'
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const=AUTO,
        metavar='CHECKPOINT',
        help='resume from this checkpoint; without a value, or with auto, from the newest one in '
        'the work dir',
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='overwrite the checkpoints of an earlier run'
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='float16',
        choices=('float16', 'bfloat16'),
        help='automatic mixed precision: float16, the default, needs a GPU',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the ratio of the actual batch size to the base batch size '
        'of the config',
    )
    add_compile_argument(parser)
    add_skip_argument(parser)
    add_options_argument(parser)
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    check_parts(cfg, 'train')
    if args.amp is not None:
        use_mixed_precision(cfg, args.amp)
    if args.auto_scale_lr:
        scale_learning_rate(cfg)
    if args.compile is not None:
        request_compilation(cfg, args.compile)

    problem = mmcv_problem()
    if problem is not None:
        print_once(f'{problem.what}: {problem.found} -> {problem.remedy}', cfg.launcher)
    model = validate_config(cfg).to('meta')  # names and shapes; MMEngine builds its own
    with locked(cfg):
        decision = decide_resume(cfg, args.overwrite, model, args.resume)
        if decision.finished:
            return
        check_pretrained(cfg.model, download=False)
        splits = ('train', 'val')
        lines = check_data(cfg, splits=splits, model=model, measured=('test',)).lines()
        print_once('\n'.join(lines), cfg.launcher)
        ensure_checked(training_dtype(cfg))
        train(cfg, model, args.overwrite, decision, lines)


if __name__ == '__main__':
    run_main(main)
