"""Evaluates a checkpoint and, with --show-dir, draws predictions next to the ground truth.

    python tools/test.py CONFIG CHECKPOINT [--weights model|ema] [--work-dir DIR] [--show-dir DIR]
                                           [--compile [BACKEND]] [--skip-checks NAME …]
                                           [--cfg-options KEY=VALUE …]
    python tools/test.py configs/imagenet_pola_swin_t.py mmpola://pola_swin_tiny
    bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [the same arguments]

CHECKPOINT is any file of weights for the config's whole model: of tools/train.py, of the authors, a
bare state dict or .safetensors. docs/weights.md describes how to name it. --weights says which
weights of a file with plain and averaged (EMA) ones are evaluated; the log says which were.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.checkpoint.contents import WEIGHTS, WEIGHTS_HELP
from mmpola.kernels.gate import ensure_checked
from mmpola.messages import run_main
from mmpola.openmmlab.checks import add_skip_argument, check_data
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.read import (
    add_compile_argument,
    add_model_arguments,
    add_options_argument,
    check_parts,
    draw_predictions,
    load_config,
    request_compilation,
)
from mmpola.openmmlab.processes import place
from mmpola.openmmlab.run.train import evaluate
from mmpola.openmmlab.start.fit import read_checkpoint_for
from mmpola.pretraining.data_config import name_imagenet_classes, name_trained_classes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint', allow_abbrev=False)
    add_model_arguments(parser)
    parser.add_argument('--weights', choices=WEIGHTS, help=WEIGHTS_HELP)
    parser.add_argument(
        '--work-dir', help='folder for logs and metrics (default: work_dirs/CONFIG_NAME)'
    )
    parser.add_argument(
        '--show-dir', help='draw predictions next to the ground truth into this folder'
    )
    add_compile_argument(parser)
    add_skip_argument(parser)
    add_options_argument(parser)
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    check_parts(cfg, 'test')
    if args.compile is not None:
        request_compilation(cfg, args.compile)
    if args.show_dir is not None:
        draw_predictions(cfg, args.show_dir)

    model = validate_config(cfg).to('meta')  # names and shapes; MMEngine builds its own
    checkpoint = read_checkpoint_for(args.checkpoint, model, args.weights)
    name_trained_classes(cfg, checkpoint.classes)
    name_imagenet_classes(cfg)
    lines = check_data(cfg, splits=('test',)).lines()
    if place(cfg.launcher).rank == 0:
        print(*lines, sep='\n')
    ensure_checked('float32')
    evaluate(cfg, checkpoint, lines)


if __name__ == '__main__':
    run_main(main)
