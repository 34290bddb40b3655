"""Prints parameters and multiply-accumulates of a config's model.

    python tools/get_flops.py CONFIG [--shape HEIGHT WIDTH | --shape TOKENS]

Counts matrix products and convolutions, including those inside scaled_dot_product_attention, for
inference on one image, sequence or pair of sequences. A detector's region heads get as many
proposals, and its mask head as many boxes, as its config keeps.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.messages import UsageError, listed, run_main
from mmpola.openmmlab.config.read import add_options_argument, load_config
from mmpola.openmmlab.export.flops import count_model
from mmpola.openmmlab.export.size import input_size


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Count parameters and multiply-accumulates of a model'
    )
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        metavar='SIZE',
        help="height and width of an image, or the tokens of a sequence (default: the config's "
        'own; 800 1280 for a detector)',
    )
    add_options_argument(parser)
    args = parser.parse_args()
    cfg = load_config(args)
    size = input_size(cfg)
    if args.shape:
        if len(args.shape) != len(size):
            expected = 'TOKENS' if len(size) == 1 else 'HEIGHT WIDTH'
            raise UsageError(f'--shape: expected {expected}, got {listed(args.shape)}')
        size = tuple(args.shape)
    parameters, macs = count_model(cfg, size)
    sides = ' x '.join(str(side) for side in size)
    print(f'{args.config} at {sides}: {parameters:,} parameters, {macs / 1e9:.2f} GMACs')


if __name__ == '__main__':
    run_main(main)
