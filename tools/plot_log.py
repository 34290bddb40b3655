"""Draws the curves of training runs from the scalars that MMEngine writes.

    python tools/plot_log.py work_dirs/imagenet_pola_swin_t --out curves.png
    python tools/plot_log.py WORK_DIR OTHER_WORK_DIR --out compared.png --keys loss accuracy/top1

Each LOG is a work dir, one run's folder in it, or a scalars.json. Of a work dir the newest run is drawn, with the runs
that it resumed: where they logged the same steps, the newest counts. One LOG shows its loss with the parts; several
share each panel. Values are as logged: MMEngine's losses and times are means over its last 10 steps by default.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from mmpola.engine.curves import asked_panels, default_panels, draw
from mmpola.engine.logs import labels, read_log
from mmpola.messages import UsageError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw the curves of training runs', allow_abbrev=False)
    parser.add_argument('logs', type=Path, nargs='+', metavar='LOG', help='work dir, run folder in it, or scalars.json')
    parser.add_argument('--out', type=Path, required=True, metavar='PICTURE', help='.png, .pdf or .svg to write')
    parser.add_argument('--keys', nargs='+', metavar='KEY', help='draw these, a panel each')
    args = parser.parse_args()
    if not args.out.parent.is_dir():
        raise UsageError(f'{args.out.parent}: no such folder to write into')
    logs = [read_log(path, label) for path, label in zip(args.logs, labels(args.logs), strict=True)]
    panels = asked_panels(logs, args.keys) if args.keys else default_panels(logs)
    try:
        draw(panels, [log.label for log in logs]).savefig(args.out)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib cannot write
        raise UsageError(f'{args.out}: cannot be written ({error})') from None
    for log in logs:
        steps = [row['iter'] for row in log.rows.training]
        runs = f'{log.runs} runs joined' if log.runs > 1 else 'one run'
        lost = sum(not math.isfinite(loss) for loss in log.curve('loss', False)[1])
        warning = f'; {lost} rows have a NaN or infinite loss' if lost else ''
        print(f'{log.label}: steps {steps[0]:,.0f} to {steps[-1]:,.0f}, {runs}{warning}')
    print(f'{args.out}: {len(panels)} panels')


if __name__ == '__main__':
    run_main(main)
