"""Divides images into training, validation and test: copies or lists, and never moves them.

    python tools/split.py SOURCE OUT [--val 0.2] [--test 0] [--suffix .jpg]

    SOURCE                          written
    a file in COCO's format         OUT/train.json, OUT/val.json
    a folder of class folders       copies, OUT/train/CLASS/IMAGE, OUT/val/CLASS/IMAGE
    another folder of images        lists of names without suffix, OUT/train.txt, OUT/val.txt

The same names are always divided alike. What exists is never overwritten, and a line counts the
files that are left out. The copies of a photograph that Roboflow has augmented (NAME.rf.HASH.jpg)
stay in one split. Other photographs of the same thing, such as the frames of a video, may come into
different splits: then validation is too good.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path

from mmpola.messages import UsageError, run_main
from mmpola.openmmlab.split import split_images


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Divide images into training, validation and test, as copies or lists'
    )
    parser.add_argument(
        'source',
        type=Path,
        help="file in COCO's format (.json), folder of class folders, or folder of images",
    )
    parser.add_argument('out', type=Path, help='folder for the splits')
    parser.add_argument('--val', type=float, default=0.2, help='share in 0 … 1 (default: 0.2)')
    parser.add_argument('--test', type=float, default=0.0, help='share in 0 … 1 (default: none)')
    parser.add_argument(
        '--suffix',
        default='.jpg',
        help='of the images in a folder of images (default: .jpg, and .JPG)',
    )
    args = parser.parse_args()
    if args.val <= 0 or args.test < 0 or args.val + args.test >= 1:
        rule = 'expected --val above 0, --test from 0, together below 1'
        raise UsageError(f'{rule}, got {args.val:g} and {args.test:g}')
    shares = {'val': args.val}
    if args.test > 0:
        shares['test'] = args.test
    counts = split_images(args.source, args.out, shares, args.suffix)
    images = ', '.join(f'{name} {count:,}' for name, count in counts.items())
    print(f'{args.out}: {images} images')


if __name__ == '__main__':
    run_main(main)
