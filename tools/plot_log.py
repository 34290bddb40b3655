"""Draws the curves of training runs from the scalars that MMEngine logs.

    python tools/plot_log.py work_dirs/imagenet_pola_swin_t --out curves.png
    python tools/plot_log.py WORK_DIR OTHER_WORK_DIR --out compared.png --keys loss accuracy/top1

Each LOG is a work dir, the folder of one run in it, or a scalars.json. Of a work dir, the newest run is drawn together
with the runs that it resumed; where they logged the same steps, the newest run is used. A single LOG is drawn with the
components of its loss; several LOGs share each panel. Values are as logged: by default MMEngine averages losses and
times over the last 10 steps.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
from pathlib import Path

from mmpola.engine.curves import default_panels, draw, panels_for_keys, save
from mmpola.engine.logs import labels, read_log
from mmpola.messages import UsageError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw the curves of training runs', allow_abbrev=False)
    parser.add_argument(
        'logs', type=Path, nargs='+', metavar='LOG', help='work dir, folder of a run in it, or scalars.json'
    )
    parser.add_argument('--out', type=Path, required=True, metavar='FIGURE', help='.png, .pdf or .svg file to write')
    parser.add_argument('--keys', nargs='+', metavar='KEY', help='draw only these values, a panel each')
    args = parser.parse_args()
    if not args.out.parent.is_dir():
        raise UsageError(f'{args.out.parent}: no such folder to write into')
    logs = [read_log(path, label) for path, label in zip(args.logs, labels(args.logs), strict=True)]
    panels = panels_for_keys(logs, args.keys) if args.keys else default_panels(logs)
    save(draw(panels, [log.label for log in logs]), args.out)
    for log in logs:
        print(log.summary())
    print(f'{args.out}: {len(panels)} panels')


if __name__ == '__main__':
    run_main(main)
