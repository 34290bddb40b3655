"""Writes the backbone and the head of a checkpoint, and nothing else, into a small file to hand on.

    python tools/convert_checkpoint.py work_dirs/imagenet_pola_swin_t/epoch_300.pth checkpoints/pola_swin_t.pth
    python tools/convert_checkpoint.py SRC DST [--backbone-only] [--arch NAME] [--metric 'top-1 82.6'] [--force]

SRC is whatever mmpola loads: a training checkpoint of mmpola, mmdet or mmseg, the authors' file, a bare state dict. Of
averaged (EMA) and plain weights the averaged ones are taken. DST is `{'state_dict', 'meta'}` with an ImageClassifier's
names, `backbone.…`, `norm.…`, `proj.…`, `head.…`: `init_cfg` of a backbone, alone or in a detector, and of an
ImageClassifier reads it, MMEngine's and timm's own loaders do, and so does torch.load(weights_only=True).

NAME is timm's, as `timm.list_models('pola*')` gives it after `import mmpola.timm`: pola_swin_tiny, polaformer_pp_b2.
A file of that name must fit it, tensor by tensor, by the loader's own rules. Without --arch the name is found by the
same rules; a backbone that no name describes is written as it is, with `arch` None.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mmpola.engine.convert import check_destination, convert, summary, write
from mmpola.messages import run_main


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Write backbone and head of a checkpoint into a small file', allow_abbrev=False
    )
    parser.add_argument('source', type=Path, metavar='SRC', help='checkpoint to read')
    parser.add_argument('destination', type=Path, metavar='DST', help='file to write')
    parser.add_argument('--backbone-only', action='store_true', help='leave the classification head out')
    parser.add_argument('--arch', metavar='NAME', help="timm's name of the backbone, e.g. pola_swin_tiny: must fit")
    parser.add_argument('--metric', metavar='TEXT', help="what the weights reach, e.g. 'top-1 82.6'; kept in `meta`")
    parser.add_argument('--force', action='store_true', help='write over DST')
    args = parser.parse_args()
    check_destination(args.source, args.destination, args.force)
    conversion = convert(args.source, args.backbone_only, args.arch, args.metric)
    write(conversion, args.destination)
    print(summary(conversion, args.source, args.destination))


if __name__ == '__main__':
    run_main(main)
