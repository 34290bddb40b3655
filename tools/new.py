"""Writes a config for a folder of labelled images, and a picture of what it holds.

    python tools/new.py FOLDER [--task TASK] [--format FORMAT] [--classes cat,dog] [--size 512]
        [--model NAME] [--out FILE]

It recognises COCO's format, Pascal VOC's, YOLO's text files, projects of VIA, labelme and CVAT,
label maps beside images, and folders of classes; says by what; and decides what the data decide:
task, classes, splits, the size of the network's input, the length of training. FOLDER stays as it
is. Written are NAME.py, which `mmpola train` takes, and NAME_data/, with data.jpg and with what
mmdet and mmseg cannot read in the original. What exists is never overwritten.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.messages import run_main
from mmpola.openmmlab.new import FORMATS, TASKS, new_config


def main() -> None:
    parser = argparse.ArgumentParser(description='Write a config for a folder of labelled images')
    parser.add_argument('folder', help='folder of images with their labels, at any depth')
    parser.add_argument('--task', choices=TASKS, help='what to learn (default: what the data has)')
    parser.add_argument('--format', choices=FORMATS, help='what to read if there are several')
    parser.add_argument(
        '--classes',
        metavar='NAME,NAME',
        help='classes to learn, others are left out; of label maps, their names by number',
    )
    parser.add_argument('--size', type=int, help='longer side of what the network reads, pixels')
    parser.add_argument(
        '--model', help='config to inherit from: a name in configs/, mmdet::… or mmseg::…'
    )
    parser.add_argument('--out', metavar='FILE', help='config to write (default: FOLDER.py)')
    new_config(parser.parse_args())


if __name__ == '__main__':
    run_main(main)
