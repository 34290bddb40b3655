"""Prints parameters and multiply-accumulates of a config's model, per part and per stage of the backbone.

    python tools/get_flops.py CONFIG [--shape HEIGHT WIDTH]

Counts matrix products and convolutions, also those inside scaled_dot_product_attention, of inference on one image. A
detector's region heads get as many proposals, its mask head as many boxes, as its config keeps.
"""

from __future__ import annotations

import argparse

from mmpola.engine.config import add_common_arguments, load_config
from mmpola.engine.flops import print_table
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Count parameters and multiply-accumulates of a model')
    parser.add_argument('config', help='config file')
    parser.add_argument('--shape', type=int, nargs=2, default=(800, 1280), metavar=('HEIGHT', 'WIDTH'), help='pixels')
    add_common_arguments(parser)
    args = parser.parse_args()
    cfg = load_config(args)
    print(f'{args.config} at {args.shape[0]} x {args.shape[1]}')
    print_table(cfg, *args.shape)


if __name__ == '__main__':
    run_main(main)
