"""Whole training steps and inference of backbones, next to mmdet's and timm's."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.gpu.clock import compare
from benchmarks.measure import Run
from benchmarks.networks import mmdet_backbone, on_literal_equations
from benchmarks.records import Row, version
from mmpola.backbones import PolaPVT, PolaSwin

SIZES = {(800, 1344): 2, (224, 224): 64}
"""Batch size by image size; 1344 is 1333 padded to a multiple of 32, as detectors pad it."""

DRY_SIZES = {(64, 64): 1}

OURS: dict[str, Any] = {'Pola-Swin-T': (PolaSwin, 'Swin-T'), 'Pola-PVT-T': (PolaPVT, 'PVT-T')}
"""Name -> our class, and mmdet's backbone with the same block layout."""

PASSES = ('training step', 'inference')
MODES = ('eager', 'compiled')
DTYPES = ('float16', 'bfloat16')


def network_rows(dry_run: bool) -> list[Row]:
    """List the rows: what a user waits for comes first, and what compiles for minutes later."""
    rows: list[Row] = []
    for what, mode, dtype in product(PASSES, MODES, DTYPES):
        for size, name in product(DRY_SIZES if dry_run else SIZES, OURS):
            row = {'network': name, 'size': f'{size[0]}x{size[1]}'}
            rows.append(row | {'dtype': dtype, 'pass': what, 'mode': mode})
    return rows


def compiled_variants(row: Row, dry_run: bool) -> list[str]:
    """Return the networks of a row that are compiled before it is timed."""
    if row['mode'] == 'eager':
        return []
    return peers(row)


def compile_network(row: Row, variant: str, dry_run: bool) -> None:
    """Run a network once, so that compilers fill their caches on the disk."""
    for run in runs_of(row, [variant], dry_run).values():
        run()


def time_networks(row: Row, failures: dict[str, str], dry_run: bool) -> Row:
    """Compare our backbone with its peers.

    Weights are float32, with autocast to the row's dtype. Eager, it is also compared with itself on
    the literal equations. Nothing is compiled in a dry run, and the operators run in PyTorch.
    """
    names = [name for name in peers(row) if name not in failures]
    runs = runs_of(row, names, dry_run)
    for name in names:
        if name not in runs:
            failures[name] = 'it is installed, but cannot be imported'
    if row['mode'] == 'eager':
        runs['literal'] = on_literal_equations(runs['ours'])
    return row | compare(runs, failures, dry_run)


def peers(row: Row) -> list[str]:
    """Return 'ours' and the other implementations that are installed."""
    names = ['ours']
    if version('mmdet'):
        names.append('mmdet')
    if row['network'] == 'Pola-Swin-T':
        names.append('timm')
    return names


def runs_of(row: Row, names: list[str], dry_run: bool) -> dict[str, Run]:
    """Build networks and return a run of the row's pass for each, unless it cannot be imported."""
    height, width = map(int, row['size'].split('x'))
    batch = (DRY_SIZES if dry_run else SIZES)[height, width]
    device = 'cpu' if dry_run else 'cuda'
    dtype = getattr(torch, row['dtype'])
    image = torch.randn(batch, 3, height, width, device=device)
    runs: dict[str, Run] = {}
    for name in names:
        network = build(row['network'], name, (height, width), dry_run)
        if network is None:
            continue
        network.to(device)
        if row['mode'] == 'compiled' and not dry_run:
            compiled: Any = torch.compile(network, dynamic=False)
            network = compiled
        if row['pass'] == 'inference':
            runs[name] = partial(inference, network, image, dtype)
        else:
            runs[name] = TrainingStep(network, image, dtype)
    return runs


def build(network: str, variant: str, size: tuple[int, int], dry_run: bool) -> nn.Module | None:
    """Build our backbone, mmdet's with the same block layout, or timm's Swin-T.

    Returns:
        None if mmdet cannot be imported.
    """
    backbone_class, sibling = OURS[network]
    if variant == 'ours':
        backend = 'torch' if dry_run else 'triton'
        return backbone_class('tiny', drop_path_rate=0.0, backend=backend)
    if variant == 'mmdet':
        return mmdet_backbone(sibling)
    return timm.create_model(
        'swin_tiny_patch4_window7_224', features_only=True, img_size=size, drop_path_rate=0.0
    )


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
