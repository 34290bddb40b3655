"""Converts a checkpoint for publishing: its backbone and classification head, or its whole model.

    python tools/convert_checkpoint.py work_dirs/imagenet_pola_swin_t/epoch_300.pth pola_swin_t.pth
    python tools/convert_checkpoint.py SRC DST [--weights model|ema] [--whole | --backbone-only]
                                       [--arch NAME] [--authors] [--metric 'top-1 82.6']
                                       [--half] [--overwrite]

SRC is any file that mmpola can load: a training checkpoint of mmpola, mmdet or mmseg, a file of the
authors, or a bare state dict. If it has plain and averaged (EMA) weights, the averaged ones are
taken, but the plain ones of a file of the authors of PolaFormer++, as by their own commands;
--weights chooses. DST is `{'state_dict', 'meta'}` with the names of an ImageClassifier:
`backbone.…`, `norm.…`, `proj.…`, `head.…`. It can be loaded by `init_cfg` of a backbone, a
detector's backbone or an ImageClassifier, by the loaders of MMEngine and timm, and by
torch.load(weights_only=True). DST may also be a .safetensors file of the same tensors.

With --whole it writes all of a detector, segmenter or classifier: weights, config and classes of a
training checkpoint, without optimizer, hooks and history. DST becomes NAME-XXXXXXXX.pth, with the
first digits of the file's SHA-256. The file is read by torch.load, the scripts in tools/ and the
inferencers of mmdet and mmseg.

NAME is a model name in timm, such as pola_swin_tiny or polaformer_pp_b2;
`timm.list_models('pola*')` lists them after `import mmpola.timm`. Every tensor must fit the named
model.

With --authors, which needs --arch, DST is `{'model', 'meta'}` with the names of the released files,
which the authors' code reads with `load_state_dict(strict=False)`: it computes its buffers itself.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path

from mmpola.checkpoint.contents import WEIGHTS, WEIGHTS_HELP
from mmpola.checkpoint.hub import resolve_checkpoint
from mmpola.checkpoint.write import check_destination
from mmpola.messages import run_main
from mmpola.pretraining.convert import (
    conversion_summary,
    convert,
    convert_whole,
    write_conversion,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Convert a checkpoint for publishing', allow_abbrev=False
    )
    parser.add_argument('source', metavar='SRC', help='checkpoint to read: a path, URL or name')
    parser.add_argument('destination', type=Path, metavar='DST', help='file to write')
    parser.add_argument('--weights', choices=WEIGHTS, help=WEIGHTS_HELP)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        '--whole', action='store_true', help='write all of a detector, segmenter or classifier'
    )
    parts.add_argument(
        '--backbone-only', action='store_true', help='leave out the classification head'
    )
    parser.add_argument(
        '--authors', action='store_true', help="use the names of the authors' files"
    )
    parser.add_argument(
        '--arch',
        metavar='NAME',
        help='name of the model in timm, e.g. pola_swin_tiny; the tensors must fit it',
    )
    parser.add_argument(
        '--metric', metavar='TEXT', help="result of the weights, e.g. 'top-1 82.6'; kept in `meta`"
    )
    parser.add_argument('--half', action='store_true', help='write half precision (float16)')
    parser.add_argument('--overwrite', action='store_true', help='overwrite DST')
    args = parser.parse_args()
    if args.whole and (args.authors or args.arch):
        parser.error(
            '--whole: expected neither --authors nor --arch, which name weights of a backbone'
        )
    if args.destination.suffix == '.safetensors' and (args.whole or args.authors):
        parser.error(
            'DST: expected the name of a .pth file for --whole and --authors, '
            f'got {args.destination}'
        )
    source = resolve_checkpoint(args.source)
    check_destination(args.destination, args.overwrite, source)
    if args.whole:
        conversion = convert_whole(source, args.weights, args.metric)
    else:
        conversion = convert(
            source, args.weights, args.backbone_only, args.arch, args.metric, args.authors
        )
    written = write_conversion(conversion, args.destination, args.half)
    print(conversion_summary(conversion, source, written))


if __name__ == '__main__':
    run_main(main)
