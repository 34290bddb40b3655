"""Shows what the linear attention of a trained model does with an image, in a local web page.

    python tools/explore.py CONFIG CHECKPOINT [IMAGE] [--layers NAME …] [--score-thr 0.3] [--port N]
                            [--device cuda:0] [--cfg-options KEY=VALUE …]

The script prints the page's address, which only this computer can open, and which contains a random
token that no other user or website knows; nothing is sent or loaded over the network. Drop an image
on the page, click a point of it, and choose a layer and a head: the page shows the model's
prediction, the weights of the point's query over the image, and their entropy. docs/analysis.md
defines them.

IMAGE is shown first. Without --layers all linear attention layers of the backbone can be chosen.
Detections with a score below --score-thr are left out. Ctrl-C ends the script with exit status 0;
2: the arguments are invalid, nothing was started.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
from pathlib import Path

from mmpola.apps import analysis
from mmpola.apps.analysis import explorer
from mmpola.apps.prediction.config import (
    add_model_arguments,
    add_score_argument,
    check_device,
    checked_config,
)
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.messages import run_main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Show what linear attention does with an image, in a local web page',
        allow_abbrev=False,
    )
    add_model_arguments(parser)
    parser.add_argument('image', nargs='?', type=Path, help='image file that is shown first')
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='NAME',
        help='attention layers of the backbone (default: all)',
    )
    add_score_argument(parser)
    parser.add_argument(
        '--port', type=int, default=0, help='port of the page (default: a free one)'
    )
    args = parser.parse_args()
    args.device = check_device(args.device)
    return args


def main() -> None:
    args = parse_arguments()
    cfg, on_meta = checked_config(args)
    predictor = load_predictor(cfg, on_meta, args.checkpoint, args.device, named=False)
    layers = analysis.choose_layers(predictor.model.backbone, args.layers)
    title = Path(args.config).stem
    with explorer.listen(args.port) as server:
        explorer.serve(
            server, explorer.Explorer(predictor, layers, args.score_thr, title, args.image)
        )


if __name__ == '__main__':
    run_main(main)
