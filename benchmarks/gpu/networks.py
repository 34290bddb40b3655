"""Part 3: inference and whole training steps of backbones, next to mmdet's and timm's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.gpu.clock import compare
from benchmarks.measure import Run
from benchmarks.networks import mmdet_backbone, on_literal_equations
from benchmarks.records import Row
from mmpola.backbones import PolaPVT, PolaSwin

SIZES = {(800, 1344): 2, (224, 224): 64}
"""Batch size by image size; 1344 is 1333 padded to a multiple of 32, as detectors pad it."""

DRY_SIZES = {(64, 64): 1}

OURS: dict[str, Any] = {'Swin-T': PolaSwin, 'PVT-T': PolaPVT}
"""mmdet's backbone -> ours with the same block layout."""


def network_rows(dry_run: bool) -> Iterator[Row]:
    """Compare our backbones with themselves on the literal equations, with mmdet's and timm's.

    All but the literal equations also run compiled. Weights are float32, with autocast to both half
    precisions. Nothing is compiled in a dry run, and the operators run in PyTorch.
    """
    device = 'cpu' if dry_run else 'cuda'
    for size, batch in (DRY_SIZES if dry_run else SIZES).items():
        for name in OURS:
            torch.compiler.reset()
            networks = networks_of(name, size, device, dry_run)
            image = torch.randn(batch, 3, *size, device=device)
            for dtype in (torch.float16, torch.bfloat16):
                steps: dict[str, Run] = {}
                inferences: dict[str, Run] = {}
                for variant, network in networks.items():
                    steps[variant] = TrainingStep(network, image, dtype)
                    inferences[variant] = partial(inference, network, image, dtype)
                steps['literal'] = on_literal_equations(steps['ours'])
                inferences['literal'] = on_literal_equations(inferences['ours'])
                for what, runs in (('inference', inferences), ('training step', steps)):
                    row: Row = {'case': f'Pola-{name}, {batch} x {size[0]}x{size[1]}'}
                    row |= {'dtype': str(dtype).removeprefix('torch.'), 'pass': what}
                    yield row | compare(runs, dry_run)


def networks_of(
    name: str, size: tuple[int, int], device: str, dry_run: bool
) -> dict[str, nn.Module]:
    """Build our backbone, mmdet's if it is installed, timm's Swin-T, and each of them compiled."""
    backend = 'torch' if dry_run else 'triton'
    networks = {'ours': OURS[name]('tiny', drop_path_rate=0.0, backend=backend)}
    sibling = mmdet_backbone(name)
    if sibling is not None:
        networks['mmdet'] = sibling
    if name == 'Swin-T':
        networks['timm'] = timm.create_model(
            'swin_tiny_patch4_window7_224',
            features_only=True,
            img_size=size,
            drop_path_rate=0.0,
        )
    for variant, network in list(networks.items()):
        network.to(device)
        if not dry_run:
            compiled: Any = torch.compile(network, dynamic=False)
            networks[f'compiled {variant}'] = compiled
    return networks


def inference(network: nn.Module, image: Tensor, dtype: torch.dtype) -> None:
    network.eval()
    with torch.no_grad(), torch.autocast(image.device.type, dtype):
        network(image)


class TrainingStep:
    """A call runs forward pass, backward pass from the sum of the maps' means, and AdamW."""

    def __init__(self, network: nn.Module, image: Tensor, dtype: torch.dtype) -> None:
        self.network = network
        self.image = image
        self.dtype = dtype
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(image.device.type, enabled=dtype == torch.float16)

    def __call__(self) -> None:
        self.network.train()
        with torch.autocast(self.image.device.type, self.dtype):
            maps = self.network(self.image)
            loss = sum(x.float().mean() for x in maps)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
