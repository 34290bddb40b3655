"""Draws losses, learning rate and metrics of a training run into its work dir.

    python tools/curves.py WORK_DIR

The picture, `curves.png`, joins all starts of the run: where a later one repeats steps, its values
are drawn. A training run draws it after each validation.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.messages import run_main
from mmpola.openmmlab.screen.curves import draw_curves


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw curves.png', allow_abbrev=False)
    parser.add_argument('work_dir', metavar='WORK_DIR', help='folder of a training run')
    args = parser.parse_args()
    print(draw_curves(args.work_dir))


if __name__ == '__main__':
    run_main(main)
