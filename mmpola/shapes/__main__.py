"""`python -m mmpola.shapes OUT --images N`: write the generated data set.

Exit status: 0 written, or nothing to do; 1 the disk failed; 2 a bad argument, or OUT holds something else.
"""

import argparse
import sys
import time
from typing import NoReturn

from mmpola.shapes.dataset import write_dataset


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f'{self.prog}: error: {message}\n')


def _parser() -> _OneLineParser:
    parser = _OneLineParser(
        prog='mmpola.shapes',
        description='Draw a data set of shapes in three layouts: OUT/coco, OUT/ade and OUT/classes.',
    )
    parser.add_argument('out', metavar='OUT', help='folder to write; it appears when the data set is complete')
    parser.add_argument('--images', type=int, default=600, metavar='N', help='training scenes (default: 600)')
    parser.add_argument('--val-images', type=int, metavar='N', help='validation scenes (default: a fifth of --images)')
    parser.add_argument(
        '--size', type=int, nargs=2, default=(192, 160), metavar=('W', 'H'), help='pixels (default: 192 160)'
    )
    parser.add_argument('--seed', type=int, default=0, metavar='S', help='seed of the scenes (default: 0)')
    parser.add_argument('--force', action='store_true', help='replace a data set that this program wrote to OUT')
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        written = write_dataset(given.out, given.images, given.val_images, tuple(given.size), given.seed, given.force)
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.exit(1, f'{parser.prog}: error: {error}\n')
    except KeyboardInterrupt:
        parser.exit(130, f'{parser.prog}: interrupted, nothing written\n')
    if written:
        print(f'wrote {given.out} in {time.perf_counter() - start:.0f} s')
    else:
        print(f'{given.out} already holds this data set: nothing to do')
    return 0


if __name__ == '__main__':
    sys.exit(main())
