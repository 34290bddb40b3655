"""Lets every program of this environment find mmcv's operators without a compiled mmcv.

    python tools/operators.py [--remove]

Writes a file `_ext.py` into the folder of mmcv-lite, or removes it. With it, programs that import
mmdet or mmseg first work too: mmdet's own tools, notebooks, your scripts. Run it again after pip
has installed mmcv-lite again. Without it, write `import mmpola` first.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.messages import run_main
from mmpola.openmmlab.mmcv.lite import add_operators, remove_operators


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Let every program of this environment find mmcv's operators without a "
        'compiled mmcv, by a file in the folder of mmcv-lite'
    )
    parser.add_argument('--remove', action='store_true', help='remove the file')
    args = parser.parse_args()
    if args.remove:
        print(f'removed {remove_operators()}')
    else:
        print(f"wrote {add_operators()}: every program here finds mmcv's operators")


if __name__ == '__main__':
    run_main(main)
