"""Compare whole backbones, in inference and training: compiled, on the literal equations, and with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import timm
import torch
from torch import Tensor, nn

from benchmarks.measure import check_parity, interleaved_seconds, peak_bytes, time_ratios
from benchmarks.peers import literal_attention, literal_mix_and_gate
from benchmarks.progress import track
from mmpola.backbones import PolaPVT, PolaSwin

Row = dict[str, Any]

SIZES = {'cuda': {(224, 224): 64, (800, 1333): 2}, 'cpu': {(224, 224): 8}}
"""Batch size by image size. Training steps at 800 x 1333 take minutes each on a CPU."""


def timm_swin_t() -> nn.Module:
    """Build timm's Swin-T, which runs at 224 x 224 only."""
    return timm.create_model('swin_tiny_patch4_window7_224', features_only=True, drop_path_rate=0.0)


def mmdet_backbone(name: str) -> nn.Module | None:
    """Build mmdet's Swin-T or PVT-T; None if mmdet is not installed."""
    try:
        from mmdet.models.backbones import PyramidVisionTransformer, SwinTransformer
    except ImportError:
        return None
    if name == 'Swin-T':
        return SwinTransformer(drop_path_rate=0.0)
    return PyramidVisionTransformer(num_layers=[2, 2, 2, 2], drop_path_rate=0.0)


def compiled(model: nn.Module) -> Any:
    """Return a callable that runs the model compiled for one image size."""
    return torch.compile(model, dynamic=False)


def backbones(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure Pola-PVT-T and Pola-Swin-T with float32 weights, in float16 autocast on a GPU."""
    cases = [(cls, size) for size in SIZES[device] for cls in (PolaPVT, PolaSwin)]
    for cls, size in track(cases, 'backbones'):
        batch = SIZES[device][size]
        image = torch.randn(batch, 3, *size, device=device)
        model = cls('tiny', drop_path_rate=0.0).to(device)
        others = {'mmdet': mmdet_backbone('PVT-T' if cls is PolaPVT else 'Swin-T')}
        if size == (224, 224):
            swin = timm_swin_t().to(device)
            others |= {'timm Swin-T': swin, 'compiled timm Swin-T': compiled(swin)}
        runs: dict[str, Callable[[bool], Any]] = {
            'ours': partial(run_network, model, image),
            'compiled': partial(run_network, compiled(model), image),
            'literal': partial(run_literally, model, image),
            **{
                name: partial(run_network, other.to(device), image)
                for name, other in others.items()
                if other is not None
            },
        }
        runs = {name: run for name, run in runs.items() if name == 'ours' or name in peers}
        exact = {name: run(False) for name, run in runs.items() if name in ('ours', 'compiled', 'literal')}
        check_parity(f'{cls.__name__} at {size}', exact)
        with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
            seconds = {
                what: interleaved_seconds({n: partial(run, training) for n, run in runs.items()}, device, repeats)
                for what, training in (('inference', False), ('training step', True))
            }
            memory = {name: peak_bytes(partial(run, True), device) for name, run in runs.items()}
        row: Row = {'case': f'{cls.__name__} tiny, {size[0]}x{size[1]}, batch {batch}'}
        row |= time_ratios(seconds, peers)
        if 'literal' in memory:
            row['peak memory, training step'] = memory['ours'] / memory['literal']
        yield {**row, 'seconds': seconds, 'bytes': memory}


def run_network(model: nn.Module, image: Tensor, training: bool) -> Any:
    """Run the forward pass and, in training, a backward pass from the sum of the maps' means; returns the maps."""
    model.train(training)
    with torch.set_grad_enabled(training):
        maps = model(image)
    if training:
        sum(x.mean() for x in maps).backward()
        model.zero_grad()
    return maps


def run_literally(model: nn.Module, image: Tensor, training: bool) -> Any:
    """Run one of our models on the literal equations instead of our operators."""

    def attend(*tensors: Any, backend: str, **named: Any) -> Tensor:
        return literal_attention(*tensors, **named)

    def mix(*arguments: Any, backend: str) -> Tensor:
        return literal_mix_and_gate(*arguments)

    with (
        mock.patch('mmpola.layers.attention.polarity_attention', attend),
        mock.patch('mmpola.layers.attention.mix_and_gate', mix),
    ):
        return run_network(model, image, training)
