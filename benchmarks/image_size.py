"""Time and memory of whole backbones over the image size: Pola-PVT-T and Pola-Swin-T, and mmdet's PVT-T and Swin-T."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import interleaved_seconds, peak_bytes
from benchmarks.networks import mmdet_backbone
from benchmarks.progress import track
from mmpola.backbones import PolaPVT, PolaSwin

Row = dict[str, Any]

SIZES = [(224, 224), (384, 384), (512, 512), (768, 768), (800, 1344), (1280, 1280), (1600, 1600)]
"""(height, width) in pixels; 800 x 1344 is COCO's usual test size, padded to a multiple of 32."""

SIBLINGS = {'Pola-PVT-T': 'PVT-T', 'Pola-Swin-T': 'Swin-T'}
"""Our backbone -> mmdet's with softmax attention in the same block layout."""


def image_size(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure seconds and peak bytes of inference on one image for every backbone; yields one row per size.

    The backbones of a pair have the same stages, widths and depths but compute different functions, so parity is not
    checked.
    Weights are float32, with float16 autocast on a GPU.
    """
    networks = _networks(peers)
    for height, width in track(SIZES, 'image sizes'):
        image = torch.randn(1, 3, height, width, device=device)
        runs = {name: partial(_infer, network.to(device), image) for name, network in networks.items()}
        with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
            memory = {name: peak_bytes(run, device) for name, run in runs.items()}
            seconds = interleaved_seconds(runs, device, repeats, warm_up=1)
        row: Row = {'case': f'{height}x{width}', 'pixels': height * width}
        for ours, theirs in SIBLINGS.items():
            absent = theirs not in networks
            row[f'{theirs} over {ours}, time'] = 'absent' if absent else seconds[theirs] / seconds[ours]
            row[f'{ours} over {theirs}, peak memory'] = 'absent' if absent else memory[ours] / memory[theirs]
        yield {**row, 'seconds': seconds, 'bytes': memory}


def _networks(peers: list[str]) -> dict[str, nn.Module]:
    ours: dict[str, nn.Module] = {'Pola-PVT-T': PolaPVT('tiny'), 'Pola-Swin-T': PolaSwin('tiny')}
    theirs = {name: mmdet_backbone(name) for name in SIBLINGS.values()} if 'mmdet' in peers else {}
    networks = ours | {name: network for name, network in theirs.items() if network is not None}
    for network in networks.values():
        network.eval()
    return networks


@torch.no_grad()
def _infer(network: nn.Module, image: Tensor) -> Any:
    return network(image)
