"""Prints parameters and multiply-accumulates of a config's model, per part and per stage of the backbone.

    python tools/get_flops.py CONFIG [--shape HEIGHT WIDTH]

Matrix products and convolutions are counted, those inside scaled_dot_product_attention too, on one zero image in
inference; a detector's region heads see as many proposals, its mask head as many boxes, as its config keeps.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from mmpola.engine.config import add_common_arguments, load_config
from mmpola.engine.flops import build_model, count_macs, parts
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Count parameters and multiply-accumulates of a model')
    parser.add_argument('config', help='config file')
    parser.add_argument('--shape', type=int, nargs=2, default=(800, 1280), metavar=('HEIGHT', 'WIDTH'), help='pixels')
    add_common_arguments(parser)
    args = parser.parse_args()
    model = build_model(load_config(args))
    macs = count_macs(model, *args.shape)
    print(f'{args.config} at {args.shape[0]} x {args.shape[1]}')
    table = Table()
    for heading in ('part', 'parameters', 'GMACs'):
        table.add_column(heading, justify='left' if heading == 'part' else 'right')
    for name in [*parts(model), '']:
        module = model.get_submodule(name)
        parameters = sum(p.numel() for p in module.parameters())
        table.add_row(name or 'total', f'{parameters:,}', f'{macs[name]:.2f}', style=None if name else 'bold')
    Console().print(table)


if __name__ == '__main__':
    run_main(main)
